// The console of `embedlib serve`: no framework, no build. Texts are hostile, so every one goes
// through textContent; colours and widths are set through CSS variables, which the page's
// Content-Security-Policy allows. All addresses are relative: the page works below a path prefix.

const byId = (id) => document.getElementById(id);
const POLL_MS = 1000;
const WINDOW = 60; // samples that rates of latencies are taken over
const SPARK = 120; // samples of the curve
const KEY = "embedlib-key";

const state = { models: [], collections: [], samples: [], timer: 0 };

// Elements.

function make(tag, content, className = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (content instanceof Node) element.append(content);
  else if (content !== undefined) element.textContent = content;
  return element;
}

function makeRow(cells, tag = "td") {
  const row = make("tr");
  for (const cell of cells) row.append(cell instanceof HTMLTableCellElement ? cell : make(tag, cell));
  return row;
}

function fillTable(table, heads, rows, caption) {
  const head = make("thead");
  head.append(makeRow(heads.map((text) => Object.assign(make("th", text), { scope: "col" }))));
  const body = make("tbody");
  body.append(...rows);
  table.replaceChildren(...(caption ? [make("caption", caption)] : []), head, body);
  return table;
}

function rowHead(text) {
  return Object.assign(make("th", text), { scope: "row" });
}

function shaded(className, share, content) {
  const cell = make("td", content, className);
  cell.style.setProperty("--share", Math.min(1, Math.max(0, share)).toFixed(3));
  return cell;
}

function showError(message) {
  byId("error").textContent = message;
  byId("error").hidden = !message;
}

// Requests.

async function call(path, body) {
  const headers = {};
  const key = byId("key").value;
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const method = body ? "POST" : "GET";
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), credentials: "omit" });
  const text = await answer.text();
  if (answer.ok) return text;
  let message = text;
  try {
    const { error } = JSON.parse(text);
    message = error.message ?? error;
  } catch { /* the answer of a proxy */ }
  throw new Error(`${answer.status}: ${String(message).slice(0, 500)}`);
}

const callJSON = async (path, body) => JSON.parse(await call(path, body));

// Models.

async function loadModels() {
  state.models = (await callJSON("v1/models")).data;
  const rows = state.models.map((model) =>
    makeRow([
      rowHead(model.id),
      model.error ? `failed: ${model.error}` : (model.task ?? model.state),
      model.dimensions ?? model.labels?.length ?? "",
      model.max_input_length ?? "",
      model.precision ?? "",
      model.engine ?? "",
      (model.prompts ?? model.labels ?? []).slice(0, 8).join(", "),
    ]),
  );
  const heads = ["model", "task", "dimensions or labels", "tokens at most", "precision", "engine", "prompts or labels"];
  fillTable(byId("model-table"), heads, rows);
  offerModels();
}

const TASKS = { similarity: ["embed"], rerank: ["rerank", "embed_multi_vector", "embed"], classify: ["classify"], search: ["embed", "embed_multi_vector"] };

function offerModels() {
  const task = byId("task").value;
  const able = state.models.filter((model) => !model.task || TASKS[task].includes(model.task));
  able.sort((a, b) => TASKS[task].indexOf(a.task) - TASKS[task].indexOf(b.task));
  const chosen = byId("model").value;
  byId("model").replaceChildren(...able.map((model) => Object.assign(make("option", model.id), { value: model.id })));
  if (able.some((model) => model.id === chosen && model.task === able[0].task)) byId("model").value = chosen;
  const needsQuery = task === "rerank" || task === "search";
  byId("query-field").hidden = !needsQuery;
  byId("texts-field").hidden = task === "search";
  byId("role-field").hidden = task !== "similarity";
  byId("model-field").hidden = task === "search"; // the destination has its own
  byId("top-field").hidden = task !== "search";
  byId("rerank-field").hidden = task !== "search" || !state.models.some((model) => ["rerank", "embed_multi_vector"].includes(model.task));
  byId("collection-field").hidden = task !== "search" || state.collections.length < 2;
}

// Playground.

const texts = () => byId("texts").value.split("\n").filter((line) => line.trim());

function cosine(a, b) {
  let dot = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) { dot += a[i] * b[i]; aa += a[i] * a[i]; bb += b[i] * b[i]; }
  return dot / (Math.sqrt(aa * bb) || 1);
}

function showSimilarity(answer, given) {
  const vectors = answer.data.map((row) => row.embedding);
  const matrix = vectors.map((a) => vectors.map((b) => cosine(a, b)));
  let best = [-1, -1];
  matrix.forEach((row, i) => row.forEach((value, j) => {
    if (j < i && (best[0] < 0 || value > matrix[best[0]][best[1]])) best = [i, j];
  }));
  const rows = matrix.map((row, i) =>
    makeRow([
      rowHead(`${i + 1}. ${given[i]}`),
      ...row.map((value, j) => {
        const isBest = (i === best[0] && j === best[1]) || (j === best[0] && i === best[1]);
        return shaded(isBest ? "heat best" : "heat", value, value.toFixed(3));
      }),
    ]),
  );
  const heads = ["", ...matrix.map((_, i) => String(i + 1))];
  return fillTable(make("table"), heads, rows, "Cosine of each pair; the most similar pair is outlined");
}

function showBars(results, caption) {
  const scores = results.map(({ score }) => score);
  const low = Math.min(0, ...scores), high = Math.max(low + 1e-9, scores.every((s) => s <= 1) ? 1 : Math.max(...scores));
  const rows = results.map(({ text, score }) =>
    makeRow([make("td", text, "text"), score.toFixed(4), shaded("bar", (score - low) / (high - low), make("span"))]));
  return fillTable(make("table"), ["", "score", ""], rows, caption);
}

const WORK = {
  similarity: {
    path: "v1/embeddings",
    body: () => ({ model: byId("model").value, input: texts(), ...(byId("role").value && { input_type: byId("role").value }) }),
    show: (answer, body) => showSimilarity(answer, body.input),
    tokens: (answer) => answer.usage.prompt_tokens,
    python: (body) => `answer = client.embeddings.create(model=${quote(body.model)}, input=${quote(body.input)}${
      body.input_type ? `, extra_body={"input_type": ${quote(body.input_type)}}` : ""})\nprint(len(answer.data), len(answer.data[0].embedding))`,
  },
  rerank: {
    path: "v1/rerank",
    body: () => ({ model: byId("model").value, query: byId("query").value, documents: texts() }),
    show: (answer, body) => showBars(
      answer.results.map(({ index, relevance_score }) => ({ text: body.documents[index], score: relevance_score })), "The best first"),
    tokens: (answer) => answer.usage?.total_tokens,
  },
  classify: {
    path: "classify",
    body: () => ({ model: byId("model").value, input: texts(), raw_scores: false }),
    show: (answer, body) => {
      const all = make("div");
      answer.data.forEach((labels, i) => all.append(showBars(labels.map(({ label, score }) => ({ text: label, score })), body.input[i])));
      return all;
    },
    tokens: (answer) => answer.usage?.total_tokens ?? answer.usage?.prompt_tokens,
  },
  search: {
    path: "v1/search",
    body: () => ({
      query: byId("query").value,
      top_k: Number(byId("top").value) || 10,
      ...(!byId("rerank-field").hidden && byId("rerank").checked && { rerank: true }),
      ...(state.collections.length > 1 && { collection: byId("collection").value }),
    }),
    show: (answer) => showBars(answer.results.map(({ text, id, score }) => ({ text: text ?? id, score })), "The best first"),
    tokens: () => undefined,
  },
};

async function run(event) {
  event?.preventDefault();
  const work = WORK[byId("task").value];
  const body = work.body();
  showError("");
  byId("run").disabled = true;
  const started = performance.now();
  try {
    const answer = await callJSON(work.path, body);
    const ms = performance.now() - started;
    byId("result").replaceChildren(work.show(answer, body));
    const facts = [`${ms.toFixed(0)} ms`];
    if (work.tokens(answer) !== undefined) facts.push(`${work.tokens(answer)} tokens`);
    if (answer.truncated?.length) facts.push(`truncated: text ${answer.truncated.map((row) => row + 1).join(", ")}`);
    for (const [name, value] of Object.entries(answer.timings_ms ?? {})) facts.push(`${name} ${Number(value).toFixed(1)} ms`);
    byId("facts").textContent = facts.join(" · ");
    showCode(work, body);
  } catch (error) {
    showError(error.message);
  } finally {
    byId("run").disabled = false;
  }
}

// The same as code. The key itself is never written out.

const quote = (value) => JSON.stringify(value);
const WORDS = { true: "True", false: "False", null: "None" };

function asPython(value) {
  if (Array.isArray(value)) return `[${value.map(asPython).join(", ")}]`;
  if (typeof value === "string" || typeof value === "number") return quote(value);
  return WORDS[value] ?? `{${Object.entries(value).map(([name, each]) => `${quote(name)}: ${asPython(each)}`).join(", ")}}`;
}

function showCode(work, body) {
  const url = new URL(work.path, location.href).href;
  const hasKey = Boolean(byId("key").value);
  const data = JSON.stringify(body).replaceAll("'", "'\\''");
  const auth = hasKey ? ` \\\n  -H "Authorization: Bearer $EMBEDLIB_API_KEY"` : "";
  byId("as-curl").textContent = `curl ${url} \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d '${data}'`;
  const base = new URL("v1", location.href).href;
  const key = hasKey ? 'os.environ["EMBEDLIB_API_KEY"]' : '"-"';
  const openai = `${hasKey ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url=${quote(base)}, api_key=${key})\n`;
  const headers = hasKey ? `{"Authorization": f"Bearer {os.environ['EMBEDLIB_API_KEY']}"}` : "{}";
  byId("as-python").textContent = work.python
    ? `${openai}${work.python(body)}`
    : `${hasKey ? "import os\n\n" : ""}import httpx\n\nanswer = httpx.post(\n    ${quote(url)},\n    json=${asPython(body)},\n    headers=${headers},\n)\nprint(answer.json())`;
  byId("as-code").hidden = false;
}

// Live: the text of /metrics, once a second while somebody looks.

function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match || !match[1].startsWith("embedlib_")) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return found;
}

const fits = (labels, wanted) => Object.entries(wanted).every(([name, value]) => labels[name] === value);
const sum = (sample, name, wanted = {}) =>
  (sample.metrics.get(name) ?? []).filter(({ labels }) => fits(labels, wanted)).reduce((total, { value }) => total + value, 0);

function rate(name, wanted = {}, samples = 10) {
  const last = state.samples.at(-1), first = state.samples[Math.max(0, state.samples.length - 1 - samples)];
  const seconds = (last.at - first.at) / 1000;
  return seconds ? Math.max(0, sum(last, name, wanted) - sum(first, name, wanted)) / seconds : 0;
}

// A share of the requests of the last minute took no longer; of none yet, of all since the start.
function quantile(share, wanted) {
  const last = state.samples.at(-1), first = state.samples[Math.max(0, state.samples.length - 1 - WINDOW)];
  const counts = (sample) => (sample.metrics.get("embedlib_duration_seconds_bucket") ?? [])
    .filter(({ labels }) => fits(labels, wanted)).map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value]);
  let now = counts(last);
  const before = counts(first);
  const recent = now.map(([bound, value], i) => [bound, value - (before[i]?.[1] ?? 0)]);
  if (recent.length && recent.at(-1)[1] > 0) now = recent;
  const total = now.at(-1)?.[1] ?? 0;
  if (!total) return "–";
  const [bound] = now.find(([, value]) => value >= share * total);
  return bound === Infinity ? "> 33 s" : bound < 1 ? `≤ ${short(bound * 1000)} ms` : `≤ ${short(bound)} s`;
}

const short = (value) => (value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1));

function showLive() {
  const last = state.samples.at(-1);
  const gauges = [
    ["requests now", Math.max(0, sum(last, "embedlib_inflight_requests") - 1)], // less this page's own
    ["texts queued", sum(last, "embedlib_queued_texts")],
    ["seconds of work queued", sum(last, "embedlib_queued_seconds")],
    ["requests/s", rate("embedlib_requests_total")],
    ["texts/s", rate("embedlib_texts_total")],
    ["tokens/s", rate("embedlib_tokens_total")],
  ];
  byId("gauges").replaceChildren(...gauges.map(([name, value]) => {
    const box = make("div", make("dt", name));
    box.append(make("dd", short(value)));
    return box;
  }));
  const lanes = (last.metrics.get("embedlib_requests_total") ?? []).map(({ labels }) => labels);
  fillTable(byId("lane-table"), ["model, lane", "requests/s", "texts/s", "tokens/s", "queued", "p50", "p90", "p99", "requests so far"],
    lanes.map((labels) => makeRow([
      rowHead(`${labels.model}, ${labels.lane}`),
      ...["requests", "texts", "tokens"].map((what) => short(rate(`embedlib_${what}_total`, labels))),
      short(sum(last, "embedlib_queued_texts", labels)),
      ...[0.5, 0.9, 0.99].map((share) => quantile(share, labels)),
      short(sum(last, "embedlib_requests_total", labels)),
    ])));
  const failures = (last.metrics.get("embedlib_failures_total") ?? []).map(({ labels, value }) => makeRow([rowHead(labels.reason), short(value)]));
  fillTable(byId("failure-table"), ["reason", "requests so far"], failures);
  showSpark();
}

function showSpark() {
  const points = [];
  for (let i = 1; i < state.samples.length; i++) {
    const [a, b] = [state.samples[i - 1], state.samples[i]];
    points.push(Math.max(0, sum(b, "embedlib_texts_total") - sum(a, "embedlib_texts_total")) / ((b.at - a.at) / 1000));
  }
  const top = Math.max(1, ...points);
  byId("line").setAttribute("points", points.map((y, i) => `${600 - (points.length - 1 - i) * (600 / (SPARK - 1))},${76 - (y / top) * 72}`).join(" "));
}

async function poll() {
  clearTimeout(state.timer);
  try {
    const sample = { at: performance.now(), metrics: parseMetrics(await call("metrics")) };
    state.samples.push(sample);
    if (state.samples.length > SPARK) state.samples.shift();
    offerCollections(sample.metrics);
    const ready = sample.metrics.get("embedlib_model_ready") ?? [];
    const numReady = ready.filter(({ value }) => value).length;
    setState(`${numReady} of ${ready.length} models ready`, numReady === ready.length);
    if (numReady !== state.models.filter((model) => model.state === "ready").length) await connect();
    if (!byId("live").hidden) showLive();
    if (!byId("jobs").hidden) await showJobs().catch((error) => showError(error.message));
  } catch (error) {
    setState(`no answer: ${error.message}`, false);
  }
  if (!document.hidden) state.timer = setTimeout(poll, POLL_MS);
}

function setState(text, isOk) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
  byId("state").dataset.ok = isOk;
}

// Jobs.

async function showJobs() {
  const { data } = await callJSON("v1/batches?limit=20");
  const rows = data.map((job) => {
    const { total = 0, completed = 0, failed = 0 } = job.request_counts ?? {};
    const bar = Object.assign(make("progress"), { max: Math.max(1, total), value: completed + failed });
    bar.setAttribute("aria-label", `${completed + failed} of ${total}`);
    return makeRow([rowHead(job.id), job.endpoint ?? "", job.status, make("td", bar), `${completed + failed} of ${total}`, failed,
      new Date(job.created_at * 1000).toLocaleString()]);
  });
  fillTable(byId("job-table"), ["job", "route", "status", "", "requests", "failed", "made"], rows, data.length ? "" : "There is no job");
}

// The page.

// Destinations have their series in /metrics from the start.
function offerCollections(metrics) {
  const names = new Set((metrics.get("embedlib_search_seconds_count") ?? []).map(({ labels }) => labels.collection));
  if (names.size === state.collections.length) return;
  state.collections = [...names];
  byId("collection").replaceChildren(...state.collections.map((name) => Object.assign(make("option", name), { value: name })));
  offerModels();
}

async function connect() {
  try {
    const { paths } = await callJSON("openapi.json");
    byId("tab-jobs").hidden = !paths["/v1/batches"];
    byId("task").querySelector("[value=search]").hidden = !paths["/v1/search"];
    await loadModels();
    showError("");
  } catch (error) {
    showError(error.message.startsWith("401") ? "This server asks for an API key; write it into the field above." : error.message);
  }
}

const tabs = () => [...document.querySelectorAll("[role=tab]")].filter((tab) => !tab.hidden);

function choose(tab) {
  for (const each of document.querySelectorAll("[role=tab]")) {
    const isChosen = each === tab;
    each.setAttribute("aria-selected", isChosen);
    each.tabIndex = isChosen ? 0 : -1;
    byId(each.getAttribute("aria-controls")).hidden = !isChosen;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`); // keeps the focus
  poll();
}

for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const all = tabs(), at = all.indexOf(tab);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const chosen = all[(next + all.length) % all.length];
    chosen.focus();
    choose(chosen);
  });
}
byId("task").addEventListener("change", offerModels);
byId("ask").addEventListener("submit", run);
byId("ask").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event); });
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
byId("key").value = sessionStorage.getItem(KEY) ?? "";
byId("key").addEventListener("change", () => {
  if (byId("key").value) sessionStorage.setItem(KEY, byId("key").value);
  else sessionStorage.removeItem(KEY);
  connect();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });

await connect();
const wanted = byId(`tab-${location.hash.slice(1)}`);
if (wanted && !wanted.hidden) choose(wanted);
else poll();

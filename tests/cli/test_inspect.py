from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import LayerNorm
from embedlib.testing.models.table import SCORING_VARIANTS, VARIANTS
from embedlib.testing.models.write import write_tiny_model
from tests.tiny_models.sparse import write_router, write_sparse_model, write_token_weights
from tests.tiny_models.static import write_static_model

Run = Callable[..., Result]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def table(output: str) -> dict[str, str]:
    """Rows by name; what is indented belongs to the row above it."""
    rows: dict[str, str] = {}
    name = ""
    for line in output.splitlines():
        if line.startswith(" "):
            rows[name] += "\n" + line.strip()
        else:
            name = line[:14].strip()
            rows[name] = line[14:].strip()
    return rows


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_model(variant: str, run: Run, tmp_path: Path) -> None:
    spec = read_model_files(write_tiny_model(tmp_path, variant)).spec
    done = run("inspect", tmp_path)
    assert done.exit_code == 0, done.output

    rows = table(done.stdout)
    assert rows["folder"] == str(tmp_path)
    assert "revision" not in rows
    assert rows["family"] == spec.encoder.family
    assert rows["layers"].startswith(f"{spec.encoder.num_layers}, ")
    limit = f"{spec.max_seq_tokens} tokens, from {spec.max_seq_tokens_source}"
    assert rows["length limit"] == limit
    assert rows["embedding"].startswith(f"{spec.embedding_dim} numbers")
    assert ("unit length" in rows["embedding"]) is spec.is_normalized
    assert rows["similarity"] == spec.similarity
    assert len(rows["modules"].splitlines()) == len(spec.modules)
    assert f"pooling: {' + '.join(spec.pooling.modes)}" in rows["modules"]
    for name, prompt in spec.prompts.items():
        assert f"{name}: {json.dumps(prompt, ensure_ascii=False)}" in rows["prompts"]
    assert ("rotary" in rows["positions"]) is (spec.encoder.rope is not None)
    assert ("only what is before it" in rows["a token sees"]) is spec.encoder.is_causal
    windows = [window for window in spec.encoder.windows if window is not None]
    assert ("within" in rows["a token sees"]) is bool(windows)
    for window in windows:
        assert f"within {window} tokens in {len(windows)} layers" in rows["a token sees"]
    norms = [
        f"layer norm: {module.dim}" for module in spec.modules if isinstance(module, LayerNorm)
    ]
    assert [line for line in rows["modules"].splitlines() if "layer norm" in line] == norms


@pytest.mark.parametrize("variant", SCORING_VARIANTS)
def test_every_kind_of_scoring_model(variant: str, run: Run, tmp_path: Path) -> None:
    template = SCORING_VARIANTS[variant].template
    write_tiny_model(tmp_path, variant)
    head = read_model_files(tmp_path, with_head=True, template=template).spec.head
    assert head is not None
    options = () if template is None else ("--template", template)
    done = run("inspect", tmp_path, *options)
    assert done.exit_code == 0, done.output
    rows = table(done.stdout)
    assert rows["labels"] == ", ".join(head.labels)
    expected = {
        "identity": "raw scores",
        "sigmoid": "sigmoid of the raw scores",
        "softmax": "softmax of the raw scores",
    }
    assert rows["Reranker"] == expected[head.reranker_activation]
    if template is None:
        assert rows["Classifier"] == expected[head.activation]
        assert rows["a pair"] == "as the tokenizer writes it"
    else:
        assert rows["Classifier"] == "none"
        assert "{query}" in rows["a pair"]
        assert ("{instruction} is" in rows["a pair"]) is ("{instruction}" in head.template.body)
    assert not rows.keys() & {"embedding", "similarity", "a query gets", "prompts"}
    content = json.loads(run("inspect", tmp_path, "--json", *options).stdout)
    assert content["head"]["labels"] == list(head.labels)


def test_what_a_terminal_would_obey_is_printed_as_an_escape(run: Run, tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path, "bert-classifier") / "config.json"
    config = json.loads(file.read_text())
    config["id2label"]["0"] = "\x1b]0;title\x07\r"
    file.write_text(json.dumps(config))
    told = r"\x1b]0;title\x07\x0d"
    assert table(run("inspect", tmp_path).stdout)["labels"].startswith(f"{told}, ")
    given = ("--top-k", 9, "--engine-cache-dir", tmp_path / "cache")
    assert f"{told} 0." in run("classify", tmp_path, *given, stdin="a river\n").stdout


def test_a_scoring_model_has_no_fingerprint(run: Run, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "bert-reranker")
    done = run("inspect", tmp_path, "--fingerprint")
    assert done.exit_code == 2
    assert "this model makes scores" in done.stderr


def test_a_reranker_is_known_by_its_hub_name(run: Run, tmp_path: Path) -> None:
    arguments = as_hub_model(tmp_path, "Qwen/Qwen3-Reranker-0.6B", "qwen3-answers")
    rows = table(run("inspect", *arguments).stdout)
    assert "Judge whether the Document" in rows["a pair"]


def test_a_document_does_not_get_the_prompt_of_queries(run: Run, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path, "bert-prompt") / "config_sentence_transformers.json"
    changes = {"prompts": {"query": "Q: "}, "default_prompt_name": "query"}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    rows = table(run("inspect", tmp_path).stdout)
    assert rows["a query gets"] == '"Q: ", from its folder'
    assert rows["a document"] == "nothing"


@pytest.mark.parametrize("variant", VARIANTS)
def test_json_holds_the_whole_spec(variant: str, run: Run, tmp_path: Path) -> None:
    spec = read_model_files(write_tiny_model(tmp_path, variant)).spec
    done = run("inspect", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["folder"] == str(tmp_path)
    assert content["revision"] is None
    assert content["encoder"]["num_heads"] == spec.encoder.num_heads
    assert tuple(content["encoder"]["windows"]) == spec.encoder.windows
    assert content["max_seq_tokens_source"] == spec.max_seq_tokens_source
    assert content["prompts"] == spec.prompts
    kinds = [type(module).__name__ for module in spec.modules]
    assert [module["kind"] for module in content["modules"]] == kinds


@pytest.mark.parametrize("precision", ["fp8", "int8", "bf16"])
def test_a_compiled_model_says_what_it_is(precision: Any, run: Run, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model", "bert")
    files = read_model_files(tmp_path / "model")
    config = Config(engine_cache_dir=tmp_path / "cache")
    out = compile_model(files, precision, ("layers.0.down",), config, out=tmp_path / "out")
    plain = run("inspect", out)
    assert (plain.exit_code, plain.stderr) == (0, "")
    assert f"{precision}, without layers.0.down" in plain.stdout
    content = json.loads(run("inspect", out, "--json").stdout)
    assert content["compiled"] == {"precision": precision, "excluded": ["layers.0.down"]}
    assert "compiled" not in json.loads(run("inspect", tmp_path / "model", "--json").stdout)


def test_the_weights_are_read_only_for_the_fingerprint(run: Run, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "bert")
    with_weights = run("inspect", tmp_path, "--fingerprint")
    assert with_weights.exit_code == 0, with_weights.output
    with Embedder(tmp_path) as embedder:
        assert table(with_weights.stdout)["fingerprint"] == embedder.fingerprint
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    assert run("inspect", tmp_path).stdout in with_weights.stdout
    without_weights = run("inspect", tmp_path, "--fingerprint")
    assert without_weights.exit_code == 1
    assert without_weights.stderr.startswith("Error: ")


def test_the_fingerprint_is_that_of_the_options_and_settings(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Config] = []

    def load(model: str, *, config: Config) -> AbstractContextManager[Any]:
        loaded.append(config)
        return nullcontext(SimpleNamespace(fingerprint="folder:digest"))

    monkeypatch.setattr("embedlib.embedder.Embedder", load)
    monkeypatch.setenv("EMBEDLIB_TRUNCATE_DIM", "4")
    monkeypatch.setenv("EMBEDLIB_PRECISION", "int8")
    monkeypatch.setenv("EMBEDLIB_ENGINE_CACHE_DIR", str(tmp_path))
    folder = write_tiny_model(tmp_path, "bert")
    done = run("inspect", folder, "--fingerprint", "--max-seq-tokens", 12)
    assert table(done.stdout)["fingerprint"] == "folder:digest"
    [config] = loaded
    assert (config.truncate_dim, config.precision, config.max_seq_tokens) == (4, "int8", 12)
    assert config.engine_cache_path == tmp_path


def test_a_hub_model_shows_its_commit(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "models--owner--model"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    write_tiny_model(root / "snapshots" / COMMIT, "bert")
    options = ("--cache-folder", tmp_path, "--local-files-only")
    assert table(run("inspect", "owner/model", *options).stdout)["revision"] == COMMIT
    content = json.loads(run("inspect", "owner/model", "--json", *options).stdout)
    assert (content["model"], content["revision"]) == ("owner/model", COMMIT)


def as_hub_model(folder: Path, name: str, variant: str = "bert") -> tuple[str, ...]:
    """Put a tiny model into a hub cache under a name; return the arguments to find it."""
    root = folder / f"models--{name.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    write_tiny_model(root / "snapshots" / COMMIT, variant)
    return (name, "--cache-folder", str(folder), "--local-files-only")


def test_which_prompt_a_query_and_a_document_get(run: Run, tmp_path: Path) -> None:
    rows = table(run("inspect", *as_hub_model(tmp_path, "intfloat/e5-small-v2")).stdout)
    known = "known to embedlib for this model (sentence-transformers adds none)"
    assert rows["a query gets"] == f'"query: ", {known}'
    assert rows["a document"] == f'"passage: ", {known}'
    assert rows["tasks"] == "none"
    # The folder's own wins, and a folder has no name.
    rows = table(run("inspect", *as_hub_model(tmp_path, "intfloat/e5-base", "bert-prompt")).stdout)
    assert rows["a query gets"].endswith("from its folder")
    write_tiny_model(tmp_path / "folder", "bert")
    rows = table(run("inspect", tmp_path / "folder").stdout)
    assert (rows["a query gets"], rows["a document"]) == ("nothing", "nothing")


def test_tasks_and_instructions(run: Run, tmp_path: Path) -> None:
    arguments = as_hub_model(tmp_path, "BAAI/bge-en-icl")
    rows = table(run("inspect", *arguments).stdout)
    assert rows["a query gets"].startswith('"<instruct>{task}\\n<query>{text}\\n<response>", known')
    assert '{task} is "Given a web search query' in rows["a query gets"]
    assert rows["a document"] == "nothing"
    assert "for queries, any task in your own words" in rows["tasks"]
    assert "few-shot examples are possible" in rows["tasks"]
    content = json.loads(run("inspect", *arguments, "--json").stdout)
    assert content["query_prompt_name"] == "query"
    assert content["document_prompt_name"] is None
    assert content["prompt_origins"] == {"query": "known"}
    assert content["takes_examples"] is True
    rows = table(run("inspect", *as_hub_model(tmp_path, "google/embeddinggemma-300m")).stdout)
    assert {"clustering", "question answering"} <= set(rows["tasks"].splitlines())


def test_what_is_not_understood_is_one_line(run: Run, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "bert")
    for file in tmp_path.rglob("config.json"):
        file.write_text(file.read_text().replace('"bert"', '"abacus"'))
    done = run("inspect", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert "abacus" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("variant", ["late-bert", "late-stanford"])
def test_a_late_interaction_model(variant: str, run: Run, tmp_path: Path) -> None:
    spec = read_model_files(write_tiny_model(tmp_path, variant)).spec
    done = run("inspect", tmp_path)
    assert done.exit_code == 0, done.output
    said = table(done.stdout)["for each token"]
    assert "queries of 16 tokens, documents of 20" in said
    assert "filled up to 16 tokens with [MASK], which the others have not seen" in said
    assert said.endswith("compared by maxsim")
    facts = json.loads(run("inspect", tmp_path, "--json").stdout)
    assert facts["late_interaction"]["document_tokens"] == 20
    assert facts["embedding_dim"] == spec.embedding_dim
    refused = run("encode", tmp_path, "-", stdin="a text\n")
    assert refused.exit_code == 1
    assert "embedlib encode needs one vector per text" in refused.stderr


def test_a_table_has_no_layers(run: Run, tmp_path: Path) -> None:
    rows = table(run("inspect", write_static_model(tmp_path / "static")).stdout)
    assert rows["family"] == "static, a table without a transformer"
    assert rows["table"] == "187 tokens, 24 numbers each"
    assert "layers" not in rows
    rows = table(run("inspect", write_token_weights(tmp_path / "weights")).stdout)
    assert (rows["table"], rows["modules"]) == ("187 tokens, 1 number each", "none")


@pytest.mark.parametrize(
    ("variant", "pooling"),
    [
        ("roberta-splade", "splade: sum of the logits' logarithms"),
        ("distilbert-splade", "splade: max of the logits' logarithms of the logarithm"),
    ],
)
def test_a_sparse_model(variant: str, pooling: str, run: Run, tmp_path: Path) -> None:
    rows = table(run("inspect", write_sparse_model(tmp_path, variant)).stdout)
    assert rows["modules"].splitlines()[-1] == pooling
    assert "of queries" not in rows


def test_a_router_says_that_queries_are_looked_up(run: Run, tmp_path: Path) -> None:
    folder = write_router(tmp_path)
    rows = table(run("inspect", folder).stdout)
    assert rows["layers"].startswith("2, ")
    assert rows["of queries"] == "weights from a table of 187 tokens"
    assert json.loads(run("inspect", folder, "--json").stdout)["query_table_tokens"] == 187

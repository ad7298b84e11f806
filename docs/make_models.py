"""Write the tables of models.md, rerank.md and model-list.md: families, templates and models.

Run it from the repository's root after a change of any of them, and commit the pages:

    python docs/make_models.py

tests/models/test_docs.py fails if a page is out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from embedlib.cli.models import row_of as models_row
from embedlib.config import Config
from embedlib.engines.cuda.lowering import build_plan
from embedlib.engines.tensorrt_llm.support import check_supported
from embedlib.errors import EngineUnsupportedError
from embedlib.models.catalog import catalog
from embedlib.models.encoder_parts import ROPE_KINDS
from embedlib.models.families.row import Family, Key
from embedlib.models.families.table import ROWS
from embedlib.models.known_models import known_model, read_entries
from embedlib.models.known_rerankers import known_reranker, template_names
from embedlib.models.prompts import Prompts
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import ModelSpec
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.write import write_tiny_model

DOCS: Final = Path(__file__).parent
PAGES: Final = {
    DOCS / "models.md": ("families",),
    DOCS / "rerank.md": ("templates",),
    DOCS / "model-list.md": ("catalog", "models", "prompts"),
}
"""The tables of each page."""
NAMED: Final = DOCS.parent / "tests" / "models" / "named"

COVERS: Final = {
    "bert": "all-MiniLM, bge-*-en, gte, e5, mxbai-embed, arctic-embed",
    "roberta": "all-distilroberta",
    "xlm-roberta": "bge-m3, multilingual-e5, arctic-embed-l-v2.0",
    "xlm-roberta-flash": "jina-reranker-v2-base-multilingual",
    "camembert": "sentence-camembert",
    "xlm-roberta-xl": "XLM-R XL and XXL",
    "ernie": "ERNIE 2",
    "ernie-tasks": "ernie-3.0-*-zh and what is trained from it; not yet seen",
    "electra": "ms-marco-electra-base; small ones",
    "albert": "paraphrase-albert-small-v2",
    "deberta-v2": "DeBERTa-v3 and mDeBERTa: zero-shot classifiers, mxbai-rerank-v1; not yet seen",
    "distilbert": "msmarco-distilbert, multi-qa-distilbert",
    "mpnet": "all-mpnet-base-v2, multi-qa-mpnet",
    "modernbert": "gte-modernbert, granite-embedding-r2, ettin",
    "jina_bert": "jina-embeddings-v2-small-en and -base-en, -de, -zh, jina-reranker-v1",
    "jina_bert-code": "jina-embeddings-v2-base-code",
    "nomic_bert": "nomic-embed-text-v1, -v1.5",
    "nomic_bert-long": "arctic-embed-m-long: texts of 2,048 tokens",
    "nomic_bert-moe": "nomic-embed-text-v2-moe",
    "jina_embeddings_v3": "jina-embeddings-v3 with an adapter merged; not yet seen",
    "new": "gte-*-en-v1.5, gte-multilingual-base, stella_en_400M_v5",
    "gte": "gte-* as transformers has them; not yet seen",
    "eurobert": "EuroBERT, jina-embeddings-v5-text-nano-*",
    "gte-arctic": "arctic-embed-m-v2.0",
    "ultrabert": "UltraBERT; not yet seen",
    "t5": "sentence-t5, gtr-t5, instructor: the encoder",
    "t5-gated": "the same on T5 1.1: FRIDA",
    "mistral": "e5-mistral, SFR-Embedding, bge-en-icl",
    "mistral-gritlm": "GritLM-7B; not yet seen",
    "ministral3": "Nemotron-3-Embed; not yet seen",
    "llama": "Llama 2 and 3",
    "llama_bidirec": "llama-nemotron-embed, llama-embed-nemotron; not yet seen",
    "qwen2": "Qwen2 and 2.5",
    "qwen2-both-ways": "gte-Qwen2, stella_en_1.5B_v5, inf-retriever",
    "qwen2-qzhou": "QZhou-Embedding; not yet seen",
    "qwen3": "Qwen3-Embedding, Octen-Embedding, F2LLM-v2, harrier-0.6b",
    "qwen3-voyage": "voyage-4-nano",
    "bidirectional_pplx_qwen3": "pplx-embed-v1",
    "bidirlm": "BidirLM-0.6B and -1.7B; not yet seen",
    "gemma": "bge-reranker-v2-gemma; not yet seen",
    "gemma2": "bge-multilingual-gemma2",
    "gemma3_text": "EmbeddingGemma, harrier-270m and -27b",
    "lfm2": "LFM2.5-Embedding, class `Lfm2BidirectionalModel`",
    "lfm2_bidirectional": "the same as transformers has it; not yet seen",
    "embedding_gemma2_text": "EmbeddingGemma 2, texts alone; not yet seen",
}
POSITIONS: Final = {
    "learned": "learned",
    "learned_after_padding": "learned, counted from the padding id on",
    "rotary": "rotary",
    "relative": "relative: vectors of distances",
    "bias": "none",
}
WINDOWS: Final = {
    "none": "",
    "all_layers": "a window in every layer",
    "by_layer_type": "a window in some layers",
    "alternating": "a window in some layers",
}


def tables() -> dict[str, str]:
    """Return every table, by name."""
    return {
        "families": table(
            ("`model_type`", "models", "positions", "attention", "heads", "engines"),
            (family_row(family) for family in ROWS.values()),
        ),
        "models": table(
            ("model", "pooling", "D", "tokens", "query prompt", "document prompt", "engines"),
            model_rows(),
        ),
        "catalog": table(
            ("model", "kind", "family", "D", "tokens", "licence", "parameters", "float32", "int8"),
            catalog_rows(),
        ),
        "prompts": table(("models", "query prompt", "document prompt"), prompt_rows()),
        "templates": table(("template", "models", "answers"), template_rows()),
    }


def page(path: Path, tables: Mapping[str, str]) -> str:
    """Return a page with its tables replaced."""
    text = path.read_text(encoding="utf-8")
    for name in PAGES[path]:
        content = tables[name]
        begin, end = f"<!-- {name}, by make_models.py -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text, count = pattern.subn(lambda _, new=f"{begin}\n{content}\n{end}": new, text)
        assert count == 1, f"{path.name} must have {begin} and {end} once"
    return text


def family_row(family: Family) -> tuple[str, ...]:
    """Return the row of a family."""
    heads = {"labels": family.sequence_head, "answer of an LM": family.lm_head}
    specs = [spec for spec in tiny_specs() if spec.encoder.family == family.key]
    return (
        f"`{family.model_type}`{choice(family)}",
        COVERS[family.key],
        positions(family),
        attention(family, specs),
        ", ".join(name for name, head in heads.items() if head is not None),
        ", ".join(family_engines(specs)),
    )


def choice(family: Family) -> str:
    """Return what chooses a row that shares its `model_type` with another one."""
    if family.chosen_by:
        return "".join(
            f" with `{key}`" + "".join(f" {value}" for value in values)
            for key, values in family.chosen_by.items()
        )
    if family.name:
        return f", class `{family.own_code['AutoModel'][0].rpartition('.')[2]}`"
    return ""


def positions(family: Family) -> str:
    """Return how a family encodes the positions of tokens."""
    text = POSITIONS[family.positions]
    if family.bias_buckets is not None:
        text += ", and a bias for every distance"
    text += ", but scores fall with the distance (ALiBi)" if family.has_alibi else ""
    if family.positions == "rotary":
        kinds = [kind for kind in family.rope_kinds if kind != "default"]
        if family.rope_kinds == ROPE_KINDS:
            kinds = ["all kinds"]
        if "rope_scaling" in family.fixed:
            kinds = []
        text += f" ({', '.join(kinds)})" if kinds else ""
        text += ", another theta where there is a window" if family.window_rope_theta else ""
    return text


def attention(family: Family, specs: list[ModelSpec]) -> str:
    """Return which tokens attend to one another."""
    ways = {spec.encoder.is_causal for spec in specs}
    key = family.is_causal or family.is_bidirectional
    text = "causal" if ways == {True} else "both ways"
    if len(ways) == 2 and isinstance(key, Key):
        text = f"causal or both ways (`{key.name}`)"
    extras = [WINDOWS[family.windows]]
    extras.append("grouped queries" if family.num_kv_heads else "")
    extras.append("normed queries and keys" if family.has_qk_norm else "")
    extras.append("capped scores" if family.attention_cap else "")
    extras.append("experts in some layers" if family.experts else "")
    extras.append("convolutions in place of most layers' attention" if family.convolutions else "")
    extras.append("an input to every layer" if family.layer_input_size else "")
    return ", ".join(filter(None, [text, *extras]))


@cache
def tiny_specs() -> tuple[ModelSpec, ...]:
    """Return the specs of all tiny models."""
    specs = []
    for name in VARIANTS:
        with TemporaryDirectory() as folder:
            specs.append(read_model_files(write_tiny_model(Path(folder), name)).spec)
    return tuple(specs)


def family_engines(specs: list[ModelSpec]) -> Iterator[str]:
    """Yield the engines that run the plain models of a family."""
    yield "openvino"
    if any(cuda_runs(spec) for spec in specs):
        yield "cuda"
    if any(tensorrt_llm_runs(spec) for spec in specs):
        yield "tensorrt_llm"
    elif any(tensorrt_llm_runs(within_window(spec)) for spec in specs):
        yield "tensorrt_llm for texts within the window"


def engines(spec: ModelSpec) -> Iterator[str]:
    """Yield the engines that run a model."""
    yield "openvino"
    if cuda_runs(spec):
        yield "cuda"
    shorter = within_window(spec)
    if tensorrt_llm_runs(spec):
        yield "tensorrt_llm"
    elif tensorrt_llm_runs(shorter):
        yield f"tensorrt_llm up to {shorter.max_seq_tokens} tokens"


def within_window(spec: ModelSpec) -> ModelSpec:
    """Return a spec whose longest text fits into every window."""
    windows = [window for window in spec.encoder.windows if window is not None]
    return replace(spec, max_seq_tokens=min([spec.max_seq_tokens, *windows]))


def tensorrt_llm_runs(spec: ModelSpec) -> bool:
    """Whether this engine computes all traits of a model."""
    try:
        check_supported(spec)
    except EngineUnsupportedError:
        return False
    return True


def cuda_runs(spec: ModelSpec) -> bool:
    """Whether this engine computes all traits of a model."""
    try:
        build_plan(spec)
    except EngineUnsupportedError:
        return False
    return True


def model_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for every model whose configuration files are among the tests."""
    for path in sorted(NAMED.glob("*.json"), key=lambda path: path.stem.lower()):
        model: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        with TemporaryDirectory() as temporary:
            for name, content in model["files"].items():
                file = Path(temporary) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(content), encoding="utf-8")
            spec = read_model_files(Path(temporary)).spec
        prompts = Prompts(spec, Config(), known_model(model["name"]))
        query = prompts.resolve(role="query")
        yield (
            model["name"],
            ", ".join(spec.pooling.modes) + (", normalized" if spec.is_normalized else ""),
            str(spec.embedding_dim),
            str(spec.max_seq_tokens),
            code(query.prefix + ("…" + query.suffix if query.suffix else "")),
            code(prompts.resolve(role="document").prefix),
            ", ".join(engines(spec)),
        )


def catalog_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for every model of catalog.json."""
    for entry in catalog():
        yield models_row(entry)[:-1]


def prompt_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for every entry of known_models.json that has prompts."""
    for entry in read_entries():
        prompts = entry.get("prompts", {})
        query = prompts.get("query") or entry.get("query_template", "")
        if "role_names" in entry:
            names = [entry["role_names"].get(role) for role in ("query", "document")]
            told = [f"the folder's prompt `{name}`" if name else "" for name in names]
            yield ", ".join(entry["models"]), *told
        if query or prompts.get("document"):
            yield ", ".join(entry["models"]), code(query), code(prompts.get("document", ""))


def template_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for every entry of known_rerankers.json."""
    for name in template_names():
        known = known_reranker(name)
        answers = ", ".join(filter(None, (known.true_token, known.false_token)))
        answers = answers or "none, a head of its own"
        yield f"`{name}`", ", ".join(known.names), answers


def code(text: str) -> str:
    """Return a text as it is written in code; an empty one stays empty."""
    return "`" + text.replace("\n", "\\n").replace("|", "\\|") + "`" if text else ""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    made = tables()
    for path in PAGES:
        path.write_text(page(path, made), encoding="utf-8")

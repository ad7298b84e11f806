"""Write the stored outputs of tiny models whose families only newer transformers has.

Run by hand, in the environment of tests/frameworks (.ci/frameworks), from the repository's root:

    python tests/goldens/make_rows.py [VARIANT ...]

Without names it makes all of `EMBEDDING` and `SCORING`. make.py and make_heads.py make the others,
with the releases in provenance.json; those of these variants are in rows.json.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import sys
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path

import make
import make_heads
import torch
from transformers import CONFIG_MAPPING

HERE = Path(__file__).parent
EMBEDDING = (
    *(
        "gte-native",
        "camembert",
        "xlm-roberta-xl",
        "ernie",
        "ernie-tasks",
        "electra",
        "albert",
        "jina_embeddings_v3",
    ),
    *(
        "deberta-v2",
        "t5",
        "t5-gated",
        "jina_bert",
        "jina_bert-code",
        "nomic_bert-moe",
        "nomic_bert-long",
    ),
    *("qwen2-both-ways", "qwen3-voyage", "pplx", "embedding_gemma2_text", "lfm2"),
    *("mistral-gritlm", "bidirlm"),
    *("ministral3", "llama_bidirec", "eurobert", "ultrabert", "gemma"),
)
SCORING = (
    "deberta-v2-classifier",
    "modernbert-modules",
    "electra-reranker",
    "gte-reranker",
    "eurobert-classifier",
)
CONFIGS = {
    **{name: name for name in EMBEDDING if name in CONFIG_MAPPING},
    "gte": "gte",
    # The model's own class derives from it, or the other way round.
    "lfm2_bidirectional": "lfm2",
    "llama_bidirec": "llama",
    "bidirectional_pplx_qwen3": "qwen3",
    "bidirlm": "qwen3",
}
"""`model_type` of a row to that of the class whose defaults it has."""


def default_values(model_type: str) -> dict[str, object]:
    """Return the defaults of a configuration class."""
    kind = CONFIG_MAPPING[model_type]
    values: dict[str, object] = {
        field.name: field.default
        for field in fields(kind)
        if isinstance(field.default, (str, int, float, bool, type(None)))
    }
    parameters = kind().rope_parameters if hasattr(kind(), "rope_parameters") else {}
    if "sliding_attention" in (parameters or {}):
        full, window = (parameters[f"{name}_attention"] for name in ("full", "sliding"))
        values["default_theta"] = {"global": full["rope_theta"], "local": window["rope_theta"]}
    else:
        values["default_theta"] = getattr(kind, "default_theta", None)
    return values


def update(path: Path, values: dict[str, object]) -> None:
    """Write these values into a file of JSON, and keep the others."""
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values, indent=1) + "\n")


def main() -> None:
    """Write one file per variant, their defaults, and the provenance."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    texts = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    pairs = json.loads((HERE / "heads" / "pairs.json").read_text(encoding="utf-8"))
    wanted = sys.argv[1:] or [*EMBEDDING, *SCORING]
    made = {name: make.write_golden(name, texts) for name in wanted if name in EMBEDDING}
    update(HERE / "weights.json", made)
    heads = {
        name: make_heads.write_golden(name, pairs, texts) for name in wanted if name in SCORING
    }
    update(HERE / "heads" / "weights.json", heads)
    update(HERE / "defaults.json", {row: default_values(kind) for row, kind in CONFIGS.items()})
    packages = {name: importlib.metadata.version(name) for name in make.PACKAGES}
    facts = {"date": datetime.now(timezone.utc).date().isoformat(), "packages": packages}
    update(HERE / "rows.json", dict.fromkeys([*made, *heads], facts))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()

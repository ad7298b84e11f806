"""Reads config_sentence_transformers.json: what holds for a model as a whole.

Source: the keys that sentence-transformers 6.2 writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from embedlib.config import Similarity
from embedlib.models.reading.json_files import JsonObject, show
from embedlib.models.spec import SIMILARITIES

SIMILARITIES_BY_NAME: Final[Mapping[str, Similarity]] = {name: name for name in SIMILARITIES}

GENERAL_KEYS: Final = frozenset(
    {
        "__version__", "requirements", "model_type", "prompts", "default_prompt_name",
        "similarity_fn_name",
    }
)  # fmt: skip
"""Of models that make vectors, with one or with one per token."""


def read_general(general: JsonObject, dim: int, *, is_sparse: bool = False) -> dict[str, Any]:
    """Return the fields of `ModelSpec` that config_sentence_transformers.json sets.

    Args:
        general: the file; may be empty.
        dim: width of the model's vectors.
        is_sparse: whether it is a sparse model.
    """
    key = "max_active_dims" if is_sparse else "truncate_dim"
    general.check_keys(GENERAL_KEYS | {key})
    general.check_fixed(
        "model_type", ("SparseEncoder" if is_sparse else "SentenceTransformer", None)
    )
    usual = "dot" if is_sparse else "cosine"
    limit = general.optional_integer(key, None, minimum=1)
    if limit is not None and limit >= dim:
        limit = None  # as sentence-transformers, which then has nothing to cut
    return {
        **read_prompts(general),
        "similarity": general.optional_choice("similarity_fn_name", SIMILARITIES_BY_NAME, usual),
        key: limit,
    }


def is_late(general: JsonObject) -> bool:
    """Return whether the file is that of a late-interaction model."""
    return general.text("model_type") == "MultiVectorEncoder" or is_pylate(general)


def is_pylate(general: JsonObject) -> bool:
    """Return whether PyLate wrote the file; earlier releases gave no `model_type`."""
    kind = general.text("model_type")
    is_open = kind in (None, "SentenceTransformer")
    return kind == "ColBERT" or (is_open and "query_prefix" in general.values)


def is_cross_encoder(general: JsonObject) -> bool:
    """Return whether the file is that of a CrossEncoder."""
    return general.text("model_type") == "CrossEncoder"


def read_prompts(general: JsonObject) -> dict[str, Any]:
    """Return the prompts of config_sentence_transformers.json, as fields of `ModelSpec`."""
    prompts = prompts_by_name(general)
    default = general.text("default_prompt_name")
    if default is not None and default not in prompts:
        names = ", ".join(show(name) for name in list(prompts)[:10])
        raise general.refuse("default_prompt_name", f"a name in prompts ({names})")
    return {"prompts": prompts, "default_prompt_name": default}


def prompts_by_name(general: JsonObject) -> dict[str, str]:
    """Return the prompts alone; a null prompt counts as an empty one."""
    table = general.child("prompts")
    return {name: table.text(name) or "" for name in table.values}

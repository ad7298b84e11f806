"""The table of model families, keyed by the `model_type` of config.json.

A row defines how the keys of config.json become an `Encoder`, which traits are constant in the
family, which keys change no vector, and the names of its tensors. A new family is a new row in
`encoders.py` or `decoders.py`. The readers, `reading/config_file.py` and `weights/load.py`, contain
no family's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from embedlib.models.families.decoders import GEMMA2, GEMMA3_TEXT, LLAMA, MISTRAL, QWEN2, QWEN3
from embedlib.models.families.encoders import (
    BERT,
    DISTILBERT,
    GTE,
    MODERNBERT,
    MPNET,
    NEW,
    NOMIC_BERT,
    ROBERTA,
    XLM_ROBERTA,
)
from embedlib.models.families.row import Family

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        row.model_type: row
        for row in (
            BERT, ROBERTA, XLM_ROBERTA, DISTILBERT, MPNET, MODERNBERT, NOMIC_BERT, NEW, GTE,
            MISTRAL, LLAMA, QWEN2, QWEN3, GEMMA2, GEMMA3_TEXT,
        )
    }
)  # fmt: skip
"""All families, by `model_type`."""

"""The table of model families, keyed by the `model_type` of config.json.

A row says how the keys of config.json become an `Encoder`, which traits the family fixes, which
keys change nothing, and what its tensors are called. A new family is a new row, in
`encoder_families.py` or `decoder_families.py`; `config_file.py` and `weights.py` read the rows and
know no family by name.
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
"""Every family there is."""

"""The table of model families, keyed by the `model_type` of config.json.

A row defines how the keys of config.json become an `Encoder`, which traits are constant in the
family, which keys change no vector, and the names of its tensors. A new family is a new row in
`encoders.py`, `rotary_encoders.py` or `decoders.py`. The readers, `reading/config_file.py` and
`weights/load.py`, contain no family's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from embedlib.models.families.decoders import (
    EUROBERT,
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    LLAMA,
    LLAMA_BIDIREC,
    MINISTRAL3,
    MISTRAL,
    QWEN2,
    QWEN3,
    ULTRABERT,
)
from embedlib.models.families.encoders import (
    BERT,
    CAMEMBERT,
    DEBERTA_V2,
    DISTILBERT,
    ELECTRA,
    ERNIE,
    MPNET,
    ROBERTA,
    XLM_ROBERTA,
    XLM_ROBERTA_XL,
)
from embedlib.models.families.rotary_encoders import (
    GTE,
    JINA_EMBEDDINGS_V3,
    MODERNBERT,
    NEW,
    NOMIC_BERT,
)
from embedlib.models.families.row import Family

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        row.model_type: row
        for row in (
            BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, XLM_ROBERTA_XL, ERNIE, ELECTRA, DEBERTA_V2,
            DISTILBERT, MPNET, MODERNBERT, NOMIC_BERT, JINA_EMBEDDINGS_V3, NEW, GTE, EUROBERT,
            ULTRABERT,
            MISTRAL, MINISTRAL3, LLAMA, LLAMA_BIDIREC, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3_TEXT,
        )
    }
)  # fmt: skip
"""All families, by `model_type`."""

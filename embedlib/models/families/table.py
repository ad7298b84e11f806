"""The table of model families, keyed by the `model_type` of config.json.

A row defines how the keys of config.json become an `Encoder`, which traits are constant in the
family, which keys change no vector, and the names of its tensors. A new family is a new row in
one of the files beside this one. The readers, `reading/config_file.py` and `weights/load.py`,
contain no family's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.models.families.convolutional import LFM2, LFM2_BIDIRECTIONAL
from embedlib.models.families.decoders import (
    BIDIRLM,
    EUROBERT,
    LLAMA,
    LLAMA_BIDIREC,
    MINISTRAL3,
    MISTRAL,
    PPLX_QWEN3,
    QWEN2,
    QWEN3,
    ULTRABERT,
)
from embedlib.models.families.encoders import (
    ALBERT,
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
from embedlib.models.families.gemmas import EMBEDDING_GEMMA2, GEMMA, GEMMA2, GEMMA3_TEXT
from embedlib.models.families.rotary_encoders import (
    GTE,
    JINA_EMBEDDINGS_V3,
    MODERNBERT,
    NEW,
    NOMIC_BERT,
)
from embedlib.models.families.row import Family, Nested
from embedlib.models.families.t5_encoders import T5

FAMILIES: Final[Mapping[str, Family]] = {
    row.model_type: row
    for row in (
        BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, XLM_ROBERTA_XL, ERNIE, ELECTRA, ALBERT, DEBERTA_V2,
        DISTILBERT, MPNET, MODERNBERT, NOMIC_BERT, JINA_EMBEDDINGS_V3, NEW, GTE, EUROBERT,
        ULTRABERT, T5,
        MISTRAL, MINISTRAL3, LLAMA, LLAMA_BIDIREC, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3_TEXT,
        EMBEDDING_GEMMA2, PPLX_QWEN3, BIDIRLM, LFM2, LFM2_BIDIRECTIONAL,
    )
}  # fmt: skip
"""All families, by `model_type`."""

ROWS: Final[Mapping[str, Family]] = {
    row.key: row for family in FAMILIES.values() for row in (family, *family.own_rows)
}
"""All rows, by `Encoder.family`: the families, and those that share a `model_type` with one."""

OWN_CONFIGS: Final[Mapping[str, str]] = {"XLMRobertaFlashConfig": XLM_ROBERTA.model_type}
"""By class of `AutoConfig` in `auto_map`: the `model_type` of files that have none, since the class
names none. Example: jina-reranker-v2-base-multilingual."""

NESTED: Final[Mapping[str, Nested]] = {
    "embedding_gemma2": Nested(
        key="text_config",
        model_type="embedding_gemma2_text",
        harmless=frozenset(
            {
                "vision_config", "audio_config", "boi_token_id", "eoi_token_id", "boa_token_id",
                "eoa_token_index", "image_token_id", "video_token_id", "audio_token_id",
            }
        ),
    )
}  # fmt: skip
"""By `model_type`: models of texts and other things, of which texts are computed."""

"""The table of tiny models: the files of each variant, except the values of its weights.

Together the variants cover every family, trait and file format that the reader supports.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from embedlib.testing.models.alibi_encoders import ALIBI_ENCODERS
from embedlib.testing.models.decoders import DECODERS
from embedlib.testing.models.encoders import ENCODERS
from embedlib.testing.models.heads import HEADS
from embedlib.testing.models.late import LATE
from embedlib.testing.models.own_decoders import OWN_DECODERS
from embedlib.testing.models.rotary_encoders import ROTARY_ENCODERS
from embedlib.testing.models.variant import TinyVariant

VARIANTS: Final[Mapping[str, TinyVariant]] = MappingProxyType(
    {**ENCODERS, **ALIBI_ENCODERS, **ROTARY_ENCODERS, **DECODERS, **OWN_DECODERS}
)
"""Every variant that computes embeddings."""

SCORING_VARIANTS: Final[Mapping[str, TinyVariant]] = HEADS
"""Every variant that computes scores."""

LATE_VARIANTS: Final[Mapping[str, TinyVariant]] = LATE
"""Every variant that computes a vector for each token; the GPU engines refuse them."""

OPENVINO_ALONE: Final = frozenset({"embedding_gemma2_text"})
"""Variants that the GPU engines refuse."""

ALIKE: Final = frozenset(
    {
        *("camembert", "ernie", "electra", "jina_embeddings_v3", "gte-native"),
        *("eurobert", "llama_bidirec", "gemma", "jina_bert", "qwen2-both-ways", "qwen3-voyage"),
        *("mistral-gritlm", "bidirlm"),
    }
)
"""Variants of `VARIANTS` that differ from others in names and defaults alone: to an engine they are
nothing new, once their vectors are right."""

"""The table of tiny models: the files of each variant, except the values of its weights.

Together the variants cover every family, trait and file format that the reader supports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.testing.models.alibi_encoders import ALIBI_ENCODERS
from embedlib.testing.models.decoders import DECODERS
from embedlib.testing.models.encoders import ENCODERS
from embedlib.testing.models.heads import HEADS
from embedlib.testing.models.late import LATE
from embedlib.testing.models.own_decoders import OWN_DECODERS
from embedlib.testing.models.rotary_encoders import ROTARY_ENCODERS
from embedlib.testing.models.variant import TinyVariant

VARIANTS: Final[Mapping[str, TinyVariant]] = {
    **ENCODERS,
    **ALIBI_ENCODERS,
    **ROTARY_ENCODERS,
    **DECODERS,
    **OWN_DECODERS,
}
"""Every variant that computes embeddings."""

SCORING_VARIANTS: Final[Mapping[str, TinyVariant]] = HEADS
"""Every variant that computes scores."""

LATE_VARIANTS: Final[Mapping[str, TinyVariant]] = LATE
"""Every variant that computes a vector for each token; the GPU engines refuse them."""

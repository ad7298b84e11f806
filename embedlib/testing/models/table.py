"""The table of tiny models: what each variant writes, except the values of its weights.

Every family, every trait and every spelling of the files that the reader knows is in one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from embedlib.testing.models.decoders import DECODERS
from embedlib.testing.models.encoders import ENCODERS
from embedlib.testing.models.heads import HEADS
from embedlib.testing.models.variant import TinyVariant

VARIANTS: Final[Mapping[str, TinyVariant]] = MappingProxyType({**ENCODERS, **DECODERS})
"""Every variant that makes embeddings."""

SCORING_VARIANTS: Final[Mapping[str, TinyVariant]] = HEADS
"""Every variant that makes scores."""

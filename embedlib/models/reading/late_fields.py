"""What the layouts of late-interaction models (ColBERT) have in common."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.added_tokens import read_token
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.parts import Parts, max_seq_tokens
from embedlib.models.reading.tokenizer_classes import CLASSES, class_name
from embedlib.models.spec import Encoder, LateInteraction, Module

PUNCTUATION: Final = tuple(string.punctuation)
QUERY_TOKENS: Final = 32
"""Length of a query where a file of PyLate or Stanford does not say."""


@dataclass(frozen=True, kw_only=True)
class LateFiles:
    """What a folder says of a late-interaction model, besides the transformer."""

    late: LateInteraction
    prompts: dict[str, str]
    modules: tuple[Module, ...]
    module_dirs: tuple[Path, ...]
    tensors: Mapping[int, str] = field(default_factory=dict)
    """As `ModelFiles.module_tensors`."""


def expansion_token(parts: Parts, file: JsonObject, named: str | None = None) -> str:
    """Return the token that fills a short query: the one that is named, else the mask token.

    Raises:
        ModelUnsupportedError: neither tokenizer_config.json nor the tokenizer's class has one.
    """
    token = named or read_token(parts.tokenizer_config, "mask_token")
    if token is None:
        row = CLASSES.get(class_name(parts.tokenizer_config, parts.config))
        token = row.defaults.get("mask_token") if row else None
    if token is None:
        raise ModelUnsupportedError(
            f"{file.name}: queries are filled up with the mask token, and tokenizer_config.json "
            "has no mask_token"
        )
    return str(token)


def length_limit(parts: Parts, file: JsonObject, key: str) -> int:
    """Return a length limit, by default that of all texts; no more than there are positions."""
    length = file.optional_integer(key, None, minimum=1)
    return min(max_seq_tokens(parts)[0] if length is None else length, parts.encoder.max_tokens)


def checked(late: LateInteraction, encoder: Encoder, file: JsonObject) -> LateInteraction:
    """Refuse a query expansion that this transformer cannot have.

    Raises:
        ModelUnsupportedError: its tokens would stand on the other side, have no position, or see
            nothing of the query.
    """
    expansion = late.expansion
    if expansion is None:
        return late
    reason = None
    if encoder.is_causal:
        reason = "stands behind a text, and this transformer reads from left to right"
    elif expansion.min_tokens > encoder.max_tokens:
        reason = f"is longer than the {encoder.max_tokens} positions"
    elif not expansion.is_attended and encoder.convolutions is not None:
        reason = "is not attended, and a convolution of this transformer mixes it into the query"
    elif not expansion.is_attended:
        windows = [window for window in encoder.windows if window is not None]
        if windows and expansion.min_tokens - 1 > min(windows):
            reason = f"is longer than the {min(windows)} tokens that a token sees on either side"
    if reason is not None:
        raise ModelUnsupportedError(
            f"{file.name}: the query expansion to {expansion.min_tokens} tokens {reason}"
        )
    return late

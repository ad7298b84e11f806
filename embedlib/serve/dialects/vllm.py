"""Fields that vLLM's routes have in common: each is heeded, or refused where it would be ignored.

Source: vLLM 0.33, `entrypoints/pooling/base/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from embedlib.batching.tokenizing.tokenizer import Side
from embedlib.serve.errors import HTTPError
from embedlib.serve.requests.exchange import Common, Exchange


class PoolingFields(Common, kw_only=True):
    """What every body of vLLM's routes that compute vectors or scores may have."""

    foreign: ClassVar[Mapping[str, str]] = {
        "messages": "the chat as a text in input, as the model's template writes it: none is "
        "applied here"
    }
    messages: None = None
    """vLLM's chat, which is refused: only null."""
    truncate_prompt_tokens: int | None = None
    """Only -1, the model's limit."""
    truncation_side: Side | None = None
    truncation: bool | None = None
    """False refuses texts that are too long; Voyage's."""
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    """The same as Jina spells it, and NVIDIA."""
    padding: Literal["max_length", "do_not_pad"] | None = None
    """Only "do_not_pad"."""
    add_special_tokens: bool | None = None
    """Only true."""
    use_activation: bool | None = None
    """False: scores as the model's head gives them; not of vectors."""


def check_length_is_own(body: PoolingFields) -> None:
    """Check that vectors are asked for with the length that the model gives them.

    Raises:
        HTTPError: they are not.
    """
    if body.use_activation is False:
        raise HTTPError.wrong_value(
            "use_activation",
            False,
            "vectors have the length that the model gives them, leave it out",
        )


def take_pooling_fields(exchange: Exchange, body: PoolingFields) -> None:
    """Take what becomes of long texts, and check what changes the computation.

    Raises:
        HTTPError: one of the others has another value than what is done anyway.
    """
    refuses = body.truncation is False or body.truncate in (False, "NONE")
    exchange.work.on_truncate = "error" if refuses else "ignore"
    exchange.work.side = body.truncation_side or ("left" if body.truncate == "START" else "right")
    for name, kept, what in (
        ("truncate_prompt_tokens", -1, "only the model's own limit (-1) is there"),
        ("padding", "do_not_pad", "texts are not padded"),
        ("add_special_tokens", True, "texts get the special tokens of the model"),
    ):
        value = getattr(body, name)
        if value is not None and value != kept:
            raise HTTPError.wrong_value(name, value, f"{what}, leave it out")

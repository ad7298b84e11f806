"""Fields that vLLM's routes have in common: each is kept, or refused where it would be ignored.

Source: vLLM 0.33, `entrypoints/pooling/base/protocol.py`.
"""

from __future__ import annotations

from typing import Literal

from embedlib.serve.errors import HTTPError
from embedlib.serve.exchange import Common


class PoolingFields(Common, kw_only=True):
    """What every body of vLLM's routes that compute vectors or scores may have."""

    truncate_prompt_tokens: int | None = None
    """Only -1, the model's limit."""
    truncation_side: Literal["left", "right"] | None = None
    """Only "right"."""
    padding: Literal["max_length", "do_not_pad"] | None = None
    """Only "do_not_pad"."""
    add_special_tokens: bool | None = None
    """Only true."""
    use_activation: bool | None = None
    """False: scores as the model's head gives them; not of vectors."""


def check_pooling_fields(body: PoolingFields) -> None:
    """Check the fields that change what is computed, in ways that are not there.

    Raises:
        HTTPError: one of them has another value than what is done anyway.
    """
    given = {body.truncate_prompt_tokens, body.truncation_side, body.padding}
    if given | {body.add_special_tokens} == {None}:  # as nearly always
        return
    for name, kept, what in (
        ("truncate_prompt_tokens", -1, "only the model's own limit (-1) is there"),
        ("truncation_side", "right", "texts are truncated on the right"),
        ("padding", "do_not_pad", "texts are not padded"),
        ("add_special_tokens", True, "texts get the special tokens of the model"),
    ):
        value = getattr(body, name)
        if value is not None and value != kept:
            raise HTTPError(400, f"{name} = {value!r}; {what}, leave it out", param=name)

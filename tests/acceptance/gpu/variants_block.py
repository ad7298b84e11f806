"""What the engine could do otherwise, each choice in turns with the engine without it.

Whether a kept beginning, pooled rows in bfloat16 and another function for attention are worth what
they cost is nothing that can be computed beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from embedlib.measuring.process import ContestantFailedError
from embedlib.models.compiled.pooled_rows import POOLED_ROWS
from tests.acceptance.gpu.models import Precision
from tests.acceptance.gpu.session import RACE, GpuSession
from tests.acceptance.gpu.verdicts import BULK_LENGTHS, QUERY_TOKENS

PREFIX_TOKENS: Final = 480
"""Of examples in front of a query: with them it just fits a recording of 512 tokens."""
ATTENTIONS: Final = ("own", "flash_attention_3", "torch")
"""Each by its name, since "auto" is one of the first two."""
ATTENTION_LENGTHS: Final = (BULK_LENGTHS, "8192")
COMPARED_LENGTHS: Final = (*[QUERY_TOKENS] * 24, 600, 1500)
"""Enough queries for a common beginning to be found and used, and texts of bulk that no recording
holds."""

Race = tuple[str, Mapping[str, Any]]
"""What both are asked, and how; see `GpuSession.race`."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A choice, and what it may change."""

    name: str
    precision: Precision
    options: Mapping[str, Any]
    """Of the engine."""
    races: tuple[Race, ...]
    compared: Mapping[str, Any] = field(default_factory=dict)
    """How the texts are made whose vectors are compared, beside their lengths."""


def variants(session: GpuSession, model: str) -> None:
    """Measure every choice beside the engine without it."""
    choices = variants_of(session, model)
    for number, choice in enumerate(choices):
        facts: dict[str, Any] = {
            "model": model,
            "precision": choice.precision,
            "variant": choice.name,
        }
        if session.budget.left_s <= 0:
            session.journal.add("variants", **facts, skipped="the time of the block is over")
            continue
        plain = session.ours(model, choice.precision)
        chosen = session.ours(model, choice.precision, **choice.options)
        num_left = RACE * sum(len(later.races) for later in choices[number:])
        longest = session.shape(model).max_seq_tokens - choice.compared.get("prefix_tokens", 0)
        lengths = [min(length, longest) for length in COMPARED_LENGTHS]
        try:
            farthest = session.farthest(chosen, plain, lengths=lengths, **choice.compared)
        except ContestantFailedError as error:  # most of all: what is not installed
            session.journal.add("variants", **facts, skipped=str(error))
        else:
            facts["farthest"] = farthest
            for call, arguments in choice.races:
                num_left -= RACE
                session.race(
                    "variants", chosen, plain, call, arguments, num_left, what=call, **facts
                )
        session.children.end(chosen)


def variants_of(session: GpuSession, model: str) -> list[Variant]:
    """Return what a model can be measured with, that first which can be had everywhere."""
    shape, passed = session.shape(model), session.passed[model]
    query = {"num_tokens": QUERY_TOKENS}
    choices = []
    if shape.spec.encoder.is_causal:
        behind = {"prefix_tokens": PREFIX_TOKENS}
        choices.append(
            Variant(
                name="keeps_prefix",
                precision=passed[0],
                options={"keeps_prefix": True},
                # Texts that share nothing show what its kernel costs them.
                races=(("query", query | behind), ("bulk", {"lengths": BULK_LENGTHS})),
                compared=behind,
            )
        )
    if "fp8" in passed:
        choices.append(
            Variant(
                name=POOLED_ROWS,
                precision="fp8",
                options={"excluded": (POOLED_ROWS,)},
                races=(("bulk", {"lengths": BULK_LENGTHS}), ("query", query)),
            )
        )
    lengths = [name for name in ATTENTION_LENGTHS if int(name) <= shape.max_seq_tokens]
    races = tuple(("bulk", {"lengths": name}) for name in lengths)
    return choices + [
        Variant(
            name=f"attention={name}",
            precision=passed[0],
            options={"attention": name},
            races=races,
        )
        for name in ATTENTIONS
    ]

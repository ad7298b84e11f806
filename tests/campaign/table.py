"""The parts of the campaign: what is drawn, within which bounds, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Part:
    """One generator with its judge: the module of its name in this package.

    Attributes:
        name: of the module; its `open_judge` is an `OpenJudge`.
        what: what it draws, for the table.
        case_seconds: a case that takes longer hangs.
        memory_gib: address space of the process that runs the cases.
        ci_count: cases of the small budget.
        share: share of the long run's time, relative to the others.
    """

    name: str
    what: str
    case_seconds: float
    memory_gib: int
    ci_count: int
    share: float


PARTS: Final = (
    Part(
        name="folders",
        what="random model folders, beside the reference",
        case_seconds=60,
        memory_gib=16,
        ci_count=15,
        share=2,
    ),
    Part(
        name="families",
        what="random folders of the families that came last, beside references of their own",
        case_seconds=60,
        memory_gib=16,
        ci_count=8,
        share=1,
    ),
    Part(
        name="shrinking",
        what="six folders as of `families`, drawn by hypothesis, which makes one that fails small",
        case_seconds=900,
        memory_gib=16,
        ci_count=1,
        share=0.5,
    ),
    Part(
        name="tokenizers",
        what="tokenizer files with one edit, beside transformers",
        case_seconds=60,
        memory_gib=16,
        ci_count=40,
        share=1,
    ),
    Part(
        name="damaged",
        what="damaged model folders",
        case_seconds=45,
        memory_gib=10,
        ci_count=60,
        share=2,
    ),
    Part(
        name="calls",
        what="calls with wrong and odd arguments",
        case_seconds=30,
        memory_gib=10,
        ci_count=2000,
        share=1,
    ),
    Part(
        name="commands",
        what="command lines with wrong and odd options",
        case_seconds=60,
        memory_gib=16,
        ci_count=40,
        share=1,
    ),
    Part(
        name="kills",
        what="loads killed or failing at a drawn call, then run to their end",
        case_seconds=900,
        memory_gib=10,
        ci_count=6,
        share=2,
    ),
    Part(
        name="model_changes",
        what="changes of model killed while clients search",
        case_seconds=900,
        memory_gib=16,
        ci_count=1,
        share=1,
    ),
    Part(
        name="disks",
        what="loads on a disk that is too small, then run to their end",
        case_seconds=900,
        memory_gib=10,
        ci_count=4,
        share=1,
    ),
    Part(
        name="databases",
        what="faults of Postgres and of Qdrant's stub in mid-load",
        case_seconds=600,
        memory_gib=10,
        ci_count=12,
        share=1,
    ),
    Part(
        name="qdrant",
        what="a real Qdrant server and loads into it killed",
        case_seconds=900,
        memory_gib=16,
        ci_count=0,  # the tests of the sink kill one where a server is found
        share=2,
    ),
)


def part_named(name: str) -> Part:
    return next(part for part in PARTS if part.name == name)

"""Folders drawn by hypothesis: all are judged, and one that fails becomes small."""

from __future__ import annotations

import random
import re

from tests.campaign import shrinking
from tests.campaign.families import BASES
from tests.campaign.folders import draw_row
from tests.campaign.verdict import Verdict, finding


def test_a_folder_that_fails_is_made_as_small_as_it_can_be() -> None:
    def judge(rng: random.Random) -> Verdict:
        _, row, what = draw_row(rng, BASES)
        is_bad = len(row.modules) > 2 and row.dtype == "BF16"
        return finding("different", what) if is_bad else Verdict("same", what)

    what = shrinking.judge_many(judge, random.Random(0), 300).what
    # The first of the names, no other change, and of the rest what it fails by.
    assert re.fullmatch(r"albert \{\} \['Pooling', '\w+', '\w+'\] BF16 limit None", what), what


def test_outcomes_are_counted_and_an_error_of_the_reference_is_told() -> None:
    def judge(rng: random.Random) -> Verdict:
        _, row, what = draw_row(rng, BASES)
        is_told = row.num_shards == 3
        return Verdict("reference fails" if is_told else "same", what, is_told=is_told)

    verdict = shrinking.judge_many(judge, random.Random(1), 40)
    assert verdict.kind == "reference fails"
    assert not verdict.is_finding
    assert sum(verdict.counts.values()) == 40
    assert set(verdict.counts) == {"folders same", "folders reference fails"}

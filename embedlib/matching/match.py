"""Compares vectors made elsewhere with a model's, and looks for what was done otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.fidelity.compare import cosines, passes
from embedlib.matching.diagnosis import are_other_rows, what_they_may_be
from embedlib.matching.setting import Maker, Prompt, Setting
from embedlib.matching.theirs import Theirs
from embedlib.models.compiled.fidelity_report import Gate

NUM_SHORT: Final = 32
"""Texts, the shortest ones, on which prompts and poolings are tried: nothing cuts these."""
NUM_CUT: Final = 8
"""Texts, the longest ones that differ, on which lengths are tried."""
SAME_LENGTH: Final = 0.01
"""Share by which the length of two equal vectors may differ."""
UNIT: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class Match:
    """The result of a comparison.

    Attributes:
        is_same: whether the setting that was asked for gives their vectors.
        cosines: float64[N], of the texts under that setting.
        differences: what has to change so that the vectors are the same; empty if nothing has to,
            or if no setting that was tried gives them.
        hint: what else was seen.
    """

    is_same: bool
    cosines: NDArray[np.float64]
    differences: tuple[str, ...] = ()
    hint: str = ""


def match(
    embedder: Embedder, theirs: Theirs, prompt: Prompt, *, normalizes: bool, gate: Gate
) -> Match:
    """Compare the vectors of a model with those of the same texts made elsewhere.

    Args:
        embedder: the model; its length limit is changed while settings are tried.
        theirs: the texts and their vectors.
        prompt: what to try first.
        normalizes: whether to scale vectors to unit length even if the model does not.
        gate: the cosines from which on two sets of vectors count as the same.
    """
    dim, own_dim = theirs.vectors.shape[1], embedder.spec.embedding_dim
    if dim > own_dim:
        told = f"their vectors have {dim} numbers, and the model makes {own_dim}: another model"
        return Match(is_same=False, cosines=np.zeros(len(theirs.texts)), hint=told)
    maker = Maker(embedder, theirs.texts, dim, normalizes=normalizes)
    asked = Setting(prompt=prompt, max_tokens=embedder.max_seq_length)
    apart: tuple[str, ...] = ()
    if dim != embedder.get_embedding_dimension():
        apart = ("no truncate_dim" if dim == own_dim else f"truncate_dim={dim}",)
    search = SettingSearch(maker, theirs, asked, gate)
    try:
        return search.run(apart)
    finally:
        embedder.max_seq_length = asked.max_tokens


class SettingSearch:
    """Tries settings, from the one that was asked for to those that are less likely."""

    def __init__(self, maker: Maker, theirs: Theirs, asked: Setting, gate: Gate) -> None:
        self._maker = maker
        self._theirs = theirs
        self._asked = asked
        self._gate = gate
        self._all = range(len(theirs.texts))
        self._by_length = sorted(self._all, key=lambda row: len(theirs.texts[row]))

    def run(self, apart: tuple[str, ...]) -> Match:
        """Return the result.

        Args:
            apart: what has to change so that the vectors have as many numbers.
        """
        ours = self._maker.vectors(self._asked, self._all)
        found = cosines(ours, self._theirs.vectors)
        if self._passes(found):
            apart += self._lengths_apart(ours)
            return Match(is_same=not apart, cosines=found, differences=apart)
        setting, hint = self._nearest()
        if setting != self._asked:
            ours = self._maker.vectors(setting, self._all)
        near = cosines(ours, self._theirs.vectors)
        if self._passes(near):
            apart += (*setting.differences(self._asked), *self._lengths_apart(ours))
            return Match(is_same=False, cosines=found, differences=apart)
        return Match(
            is_same=False, cosines=found, hint=hint or self._diagnosis(setting, ours, apart)
        )

    def _nearest(self) -> tuple[Setting, str]:
        """Return the setting that comes nearest, and what was seen if none gives the vectors."""
        # Half of them at most: of few texts, the longest may be cut.
        short = self._by_length[: min(NUM_SHORT, (len(self._all) + 1) // 2)]
        tried: list[tuple[Setting, NDArray[np.float64]]] = []
        for setting in self._short_settings():
            tried.append((setting, self._cosines(setting, short)))
            if self._passes(tried[-1][1]):
                return self._with_limit(setting)
        # The median: a few rows may be of other texts.
        setting = max(tried, key=lambda each: float(np.median(each[1])))[0]
        return setting, self._mixed(tried)

    def _with_limit(self, setting: Setting) -> tuple[Setting, str]:
        """Return the setting that gives the long texts, for one that gives the short texts."""
        found = self._cosines(setting, self._all)
        wrong = [
            row
            for row in self._by_length
            if found[row] < self._gate.p1 and self._maker.cutting_limits(row)
        ]
        if self._passes(found) or not wrong:
            return setting, ""
        longest = wrong[-NUM_CUT:]
        for candidate in self._cut_settings(setting, longest):
            if self._cosines(candidate, longest).min() >= self._gate.p1:
                return candidate, ""
        candidate = self._peak(setting, longest[-1])
        if self._cosines(candidate, longest).min() >= self._gate.p1:
            return candidate, ""
        if wrong != self._by_length[-len(wrong) :]:  # not their length tells them apart
            return setting, ""
        told = f"{setting.prompt.said} gives the short texts, and no length limit the long ones"
        return setting, told

    def _short_settings(self) -> Iterator[Setting]:
        """Yield the settings that matter for a text that nothing cuts, the likeliest first."""
        own = self._maker.own_prompts()
        yield self._asked
        yield from (replace(self._asked, prompt=prompt) for prompt in own)
        yield from (
            replace(self._asked, prompt=prompt, pooling=pooling)
            for pooling in self._maker.poolings()
            for prompt in own
        )
        for prompt in self._maker.other_prompts():
            yield replace(self._asked, prompt=prompt)

    def _cut_settings(self, setting: Setting, rows: Sequence[int]) -> Iterator[Setting]:
        limits = [limit for limit in self._maker.limits(rows) if limit != self._asked.max_tokens]
        yield from (replace(setting, max_tokens=limit) for limit in limits)
        if setting.pooling is None:
            for limit in (self._asked.max_tokens, *limits):
                yield replace(setting, max_tokens=limit, cut="start")

    def _peak(self, setting: Setting, row: int) -> Setting:
        """Return the setting with the length limit that comes nearest to the vector of a text.

        The nearer a limit is to theirs, the nearer is the vector, mostly: first every sixteenth of
        the text is tried, then more and more closely around the best.
        """
        limits = self._maker.cutting_limits(row)
        low, high = limits[0], limits[-1]
        step = max(1, (high - low) // 16)
        while True:
            settings = [replace(setting, max_tokens=limit) for limit in range(low, high + 1, step)]
            best = max(settings, key=lambda each: self._cosines(each, [row])[0])
            if step == 1:
                return best
            low, high = max(low, best.max_tokens - step), min(high, best.max_tokens + step)
            step = max(1, step // 8)

    def _mixed(self, tried: Sequence[tuple[Setting, NDArray[np.float64]]]) -> str:
        """Return which prompts give the texts, if it takes several; "" if not."""
        rows = {each.prompt.said: found for each, found in tried if each.pooling is None}
        table = np.stack(list(rows.values()))
        is_given = table >= self._gate.p1
        if not is_given.any(0).all() or is_given.all(1).any():
            return ""
        counts = np.bincount(table.argmax(0), minlength=len(rows))
        parts = [f"{count} with {name}" for name, count in zip(rows, counts, strict=True) if count]
        return f"the texts were not made alike; of {table.shape[1]}: {', '.join(parts)}"

    def _diagnosis(
        self, setting: Setting, ours: NDArray[np.float32], apart: tuple[str, ...]
    ) -> str:
        """Return what the vectors may be, which this setting comes nearest to."""
        if not self._theirs.vectors.any():
            return "they are zeros alone: nothing was computed, or it was lost on the way"
        if self._theirs.are_whole:
            return "their numbers are whole: codes of a lower precision, not the model's vectors"
        told = what_they_may_be(ours, self._theirs, self._gate)
        if told:
            with_it = ", ".join((*apart, *setting.differences(self._asked)))
            return f"with {with_it}: {told}" if with_it else told
        prompts = (self._asked.prompt, *self._maker.own_prompts())
        settings = [replace(self._asked, prompt=prompt) for prompt in prompts]
        made = (self._vectors(each, self._all) for each in settings)
        if any(
            each is not None and are_other_rows(each, self._theirs, self._gate) for each in made
        ):
            return "the vectors are those of other rows; give texts and vectors in the same order"
        return "no setting that was tried gives them: another model, revision or tokenizer"

    def _lengths_apart(self, ours: NDArray[np.float32]) -> tuple[str, ...]:
        """Return what to change so that vectors of the same direction have the same length."""
        our_lengths = np.linalg.norm(ours, axis=1)
        their_lengths = np.linalg.norm(self._theirs.vectors, axis=1)
        if np.allclose(our_lengths, their_lengths, rtol=SAME_LENGTH):
            return ()
        if np.allclose(their_lengths, 1, atol=UNIT):
            return ("normalize_embeddings=True",)
        if self._theirs.are_whole:
            return ()  # compared by their cosine alone
        if np.allclose(our_lengths, 1, atol=UNIT):
            return ("their vectors scaled to unit length",)
        return ("their vectors scaled to the lengths of the model's",)

    def _cosines(self, setting: Setting, rows: Sequence[int]) -> NDArray[np.float64]:
        ours = self._vectors(setting, rows)
        if ours is None:
            return np.full(len(rows), -1.0)
        return cosines(ours, self._theirs.vectors[list(rows)])

    def _vectors(self, setting: Setting, rows: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the vectors by a setting that is tried; None: its prompt leaves a text no room."""
        try:
            return self._maker.vectors(setting, rows)
        except ConfigError:
            return None

    def _passes(self, found: NDArray[np.float64]) -> bool:
        return passes(found, self._gate)

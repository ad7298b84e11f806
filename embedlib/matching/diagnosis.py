"""What vectors may be that no setting gives: told by those of the setting that comes nearest."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import shown
from embedlib.fidelity.compare import cosines, passes
from embedlib.matching.theirs import Theirs
from embedlib.models.compiled.fidelity_report import Gate
from embedlib.vectors.similarity import normalize

NEAR: Final = 0.98
"""A mean cosine that another precision of the same model reaches, and hardly another model."""
MAX_OTHERS: Final = 1 / 4
"""Share of the rows that may be of other texts, if the rest are the same."""
GAP: Final = 3
"""How many times as far from the model's as the rest such rows are; a precision leaves no gap."""
MIN_MOVED: Final = 1 / 8
"""Share of the rows with the vector of another row. Of a file in another order only the sampled
rows can be found: a quarter of the most that are read."""
NUM_NAMED: Final = 3
NAME_CHARACTERS: Final = 40


def what_they_may_be(ours: NDArray[np.float32], theirs: Theirs, gate: Gate) -> str:
    """Return in words what vectors are that do not pass; "" if they are not near.

    Args:
        ours: float32[N, D], of the setting that comes nearest.
        theirs: the texts and their vectors.
        gate: the cosines from which on vectors count as the same.
    """
    found = cosines(ours, theirs.vectors)
    is_right = found >= gate.p1
    others = np.flatnonzero(~is_right)
    is_most = len(others) <= MAX_OTHERS * len(found) and passes(found[is_right], gate)
    if is_most and 1 - found[others].max() > GAP * (1 - found[is_right].min()):
        return _others(others, ours, theirs, gate)
    if found.mean() >= NEAR:
        return "near, as of another precision or revision of the model"
    return ""


def are_other_rows(ours: NDArray[np.float32], theirs: Theirs, gate: Gate) -> bool:
    """Return whether vectors stand beside other texts than those that they were made of."""
    num_moved = int(_is_moved(ours, theirs, gate).sum())
    return num_moved >= max(2, MIN_MOVED * len(ours))


def _is_moved(ours: NDArray[np.float32], theirs: Theirs, gate: Gate) -> NDArray[np.bool_]:
    """Return bool[N]: which rows have not their own vector but that of another row."""
    table = normalize(theirs.vectors) @ normalize(ours).T
    is_moved: NDArray[np.bool_] = (table.max(1) >= gate.p1) & (table.diagonal() < gate.p1)
    return is_moved


def _others(rows: NDArray[np.intp], ours: NDArray[np.float32], theirs: Theirs, gate: Gate) -> str:
    """Return that all rows but these are the same, and what these are."""
    is_moved = _is_moved(ours, theirs, gate)
    named = []
    for row in rows[:NUM_NAMED]:
        seen = " (the vector of another row)" if is_moved[row] else ""
        seen = seen if theirs.vectors[row].any() else " (zeros)"
        named.append(f"{shown(theirs.texts[row], NAME_CHARACTERS)}{seen}")
    if len(rows) > NUM_NAMED:
        named.append(f"{len(rows) - NUM_NAMED} more")
    num_same = len(ours) - len(rows)
    return f"{num_same} of {len(ours)} texts are the same; these are not: {', '.join(named)}"

"""Labels of a text with their scores: what a Classifier returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from embedlib.session.scoring import Scores


class LabelScore(TypedDict):
    """A label in the result of `Classifier.predict`."""

    label: str
    score: float


LabelScores = list[LabelScore]
"""Each label of a text, the highest score first."""


def label_scores(
    scores: Scores, labels: Sequence[str], top_k: int | None = None
) -> list[LabelScores]:
    """Return the labels of each text with their scores, the highest first."""
    orders = np.argsort(-scores, axis=1, kind="stable")[:, :top_k].tolist()
    return [
        [{"label": labels[index], "score": float(row[index])} for index in order]
        for row, order in zip(scores, orders, strict=True)
    ]

"""Zero-shot classification: whether a hypothesis about a label follows from a text.

Source: `ZeroShotClassificationPipeline` of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import Formatter
from typing import Any

import numpy as np

from embedlib.batching.tokenizing.pair_forms import Pair
from embedlib.batching.tokenizing.refusals import check_text
from embedlib.errors import ConfigError, InputError, ModelUnsupportedError, shown
from embedlib.session.arguments import check_each, check_texts, elements, is_list, is_table
from embedlib.session.label_scores import LabelScores, label_scores
from embedlib.session.scoring import Scores, activate


class ZeroShot:
    """The texts and labels of a call: as pairs for the model, and with the scores it gives them."""

    def __init__(
        self,
        texts: str | Iterable[str],
        candidate_labels: str | Iterable[str],
        template: str,
        multi_label: bool,
        labels_of_model: Sequence[str],
    ) -> None:
        """Check the arguments of `Classifier.zero_shot`.

        Raises:
            InputError: texts or labels are not texts.
            ConfigError: the template has no place for a label.
            ModelUnsupportedError: the model has no label for a hypothesis that follows.
        """
        rows, self.is_single = check_texts("texts", texts)
        self.labels = check_labels(candidate_labels)
        self._entailment = find_entailment(labels_of_model)
        # Before pairs are made of them, which would be named by rows of their own.
        check_each("text", rows)
        self.pairs = make_pairs(rows, self.labels, template)
        self._multi_label = multi_label

    def result(self, numbers: Scores) -> LabelScores | list[LabelScores]:
        """Return the labels of each text with their scores; for a single text, that one list.

        Args:
            numbers: float32[N * num_labels, L], the model's outputs for all pairs, L of them.
        """
        scores = score_labels(numbers, self._entailment, len(self.labels), self._multi_label)
        results = label_scores(scores, self.labels)
        return results[0] if self.is_single else results


def check_labels(labels: object) -> list[str]:
    """Return the labels, an ordered iterable or one str with commas between them, as a list.

    Raises:
        InputError: they are not texts, or not valid Unicode, or none.
    """
    items: list[Any] = []
    if isinstance(labels, str):
        items = [label.strip() for label in labels.split(",") if label.strip()]
    elif is_list(labels) and not is_table(labels):
        items = list(elements(labels))
    if not items or not all(isinstance(label, str) and label for label in items):
        raise InputError(
            f"candidate_labels = {shown(labels)}; it must be a list of texts, or a str of texts "
            "with commas between them"
        )
    for index, label in enumerate(items):
        check_text(f"candidate_labels[{index}]", label)
    return items


def make_pairs(texts: Sequence[str], labels: Sequence[str], template: str) -> list[Pair]:
    """Return a pair of each text and the hypothesis of each label, text by text.

    Raises:
        ConfigError: the template has no place for a label, or one of another kind.
    """
    if not _takes_label(template):
        raise ConfigError(
            f"hypothesis_template = {template!r:.80}; it must hold {{}} once, the label's place, "
            "and any other brace twice"
        )
    hypotheses = [template.format(label) for label in labels]
    return [(text, hypothesis) for text in texts for hypothesis in hypotheses]


def _takes_label(template: str) -> bool:
    """Whether `str.format` puts a label, and nothing else, into a template."""
    try:
        fields = [tuple(field) for _, *field in Formatter().parse(template) if field[0] is not None]
    except ValueError:  # a single brace
        return False
    return fields == [("", "", None)] or set(fields) == {("0", "", None)}


def find_entailment(labels: Sequence[str]) -> int:
    """Return the index of a model's label for a hypothesis that follows.

    Raises:
        ModelUnsupportedError: it has no such label.
    """
    for index, label in enumerate(labels):
        if label.lower().startswith("entail"):
            return index
    raise ModelUnsupportedError(
        f"the model's labels are {', '.join(labels)}; zero_shot needs one that starts with "
        "'entail', of a model that was trained on natural language inference"
    )


def score_labels(numbers: Scores, entailment: int, num_labels: int, multi_label: bool) -> Scores:
    """Return float32[N, num_labels]: how well each label describes each text.

    Args:
        numbers: float32[N * num_labels, L], the model's outputs for all pairs, L of them.
        entailment: the index of the entailment label among the L.
        num_labels: labels of each text.
        multi_label: whether the labels do not exclude one another.
    """
    if multi_label or num_labels == 1:
        # As there: the other label is the last one, or the first if the last is the entailment.
        contradiction = -1 if entailment == 0 else 0
        both = activate(numbers[:, [contradiction, entailment]], "softmax")
        return np.ascontiguousarray(both[:, 1].reshape(-1, num_labels))
    return activate(numbers[:, entailment].reshape(-1, num_labels), "softmax")

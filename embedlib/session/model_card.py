"""What evaluators of sentence-transformers and mteb ask of a model besides its vectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelCardData:
    """Takes the place of a model card: an evaluator hands its results over in its last line."""

    model_name: str
    base_model: str | None = None
    base_model_revision: str | None = None

    def set_evaluation_metrics(
        self, evaluator: object, metrics: object, epoch: int = 0, step: int = 0
    ) -> None:
        """Keep nothing: the evaluator returns the metrics, too."""

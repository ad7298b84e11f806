"""What Reranker and Classifier share: a model with a head, and scores from its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embedlib.config import Config
from embedlib.engines.base import Lane
from embedlib.errors import ConfigError, first_line, shown
from embedlib.models.spec import Head, ScoreActivation
from embedlib.packages.imported import imported_torch
from embedlib.session.base import Session

Scores = NDArray[np.float32]
Activation = ScoreActivation | Callable[[Any], ArrayLike]
"""A name, a function of float32[N, num_labels], or a module of torch."""

MAX_QUERY_PAIRS = 128
"""Maximum pairs of a call on the query lane; more go to the bulk lane.

Retrievers return 10 to 100 candidates, and a user waits for their order. More would delay the next
caller by seconds on a CPU, and leave the engine idle until all of them are tokenized.
"""

_EMBEDDING_OPTIONS = ("truncate_dim", "similarity_fn_name", "examples", "quantization_ranges")


class ScoringSession(Session):
    """A model whose engine returns one number per label."""

    _has_head: ClassVar[bool] = True

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the scores, in the order of the columns."""
        return self._head.labels

    @property
    def num_labels(self) -> int:
        """Scores per text or pair; a reranker or reward model has one."""
        return len(self._head.labels)

    @property
    def _head(self) -> Head:
        if self.spec.head is None:
            raise ConfigError(
                f"the spec has no head; a {type(self).__name__} needs a model that makes scores"
            )
        return self.spec.head

    def _check_config(self, config: Config) -> None:
        for name in _EMBEDDING_OPTIONS:
            if getattr(config, name) is not None:
                raise ConfigError(
                    f"{name} = {shown(getattr(config, name))} is for embeddings and a "
                    f"{type(self).__name__} makes scores; leave it out"
                )
        if config.on_truncate == "chunk":
            raise ConfigError(
                f"on_truncate = 'chunk' is for embeddings: a {type(self).__name__} cannot take the "
                "mean of scores; split long texts, or pass warn, error or ignore"
            )


def lane_of(is_single: bool) -> Lane:
    """Return the lane of a call: a single text or pair is a query."""
    return Lane.QUERY if is_single else Lane.BULK


def lane_of_pairs(num_pairs: int, max_queued_texts: int) -> Lane:
    """Return the lane of a call that makes many pairs of one text, which a user waits for."""
    # A queue of queries with less room would reject the call.
    return lane_of(num_pairs <= min(MAX_QUERY_PAIRS, max_queued_texts))


def check_activation(activation: Activation, num_labels: int) -> Activation:
    """Return an activation after a trial, so that a wrong one fails before the work.

    Raises:
        ConfigError: it is not an activation.
    """
    # The trial is of the name and the shape: made-up numbers, here in the domain of a logarithm and
    # a quotient, say nothing of what the function makes of real ones. numpy's warnings are off for
    # this thread; warnings.catch_warnings would replace the filters of all threads.
    with np.errstate(all="ignore"):
        _apply(activation, np.full((1, num_labels), 0.5, np.float32))
    return activation


def activate(numbers: Scores, activation: Activation) -> Scores:
    """Apply an activation to the model's outputs, float32[N, num_labels]; the shape stays.

    Raises:
        ConfigError: the name is unknown, or the function rejects the array or returns another
            shape or a value that is not finite.
    """
    with np.errstate(under="ignore"):  # a caller may have np.seterr(all="raise")
        scores = _apply(activation, numbers)
    if not np.isfinite(scores).all():
        row, label = np.argwhere(~np.isfinite(scores))[0]
        raise ConfigError(
            f"activation_fn made {scores[row, label]} of {numbers[row, label]}; a score must be a "
            "finite number"
        )
    return scores


def _apply(activation: Activation, numbers: Scores) -> Scores:
    if isinstance(activation, str):
        if activation not in _ACTIVATIONS:
            raise ConfigError(
                f"activation_fn = {shown(activation)}; it must be a function or one of "
                f"{', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[activation](numbers)
    torch = imported_torch()  # imported already if the caller passes a torch module
    if torch is not None and isinstance(activation, torch.nn.Module):
        scores: NDArray[Any] = activation(torch.from_numpy(numbers)).numpy(force=True)
    else:
        try:
            scores = np.asarray(activation(numbers))
        except (TypeError, AttributeError) as error:  # such as a function of torch
            raise ConfigError(
                f"activation_fn = {shown(activation, 80)} does not take a numpy array "
                f"({first_line(error)}); pass one of {', '.join(_ACTIVATIONS)}, "
                "or for torch a module: torch.nn.Sigmoid()"
            ) from error
    if scores.shape != numbers.shape:
        raise ConfigError(
            f"activation_fn made the shape {scores.shape} of {numbers.shape}; it must keep it"
        )
    return scores.astype(np.float32, copy=False)


def _identity(numbers: Scores) -> Scores:
    return numbers


def _sigmoid(numbers: Scores) -> Scores:
    small = np.exp(-np.abs(numbers))  # never overflows
    return cast(Scores, np.where(numbers < 0, small, np.float32(1)) / (1 + small))


def _softmax(numbers: Scores) -> Scores:
    powers = np.exp(numbers - numbers.max(axis=1, keepdims=True))  # never overflows
    return cast(Scores, powers / powers.sum(axis=1, keepdims=True))


_ACTIVATIONS: Final[Mapping[str, Callable[[Scores], Scores]]] = {
    "identity": _identity,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
}

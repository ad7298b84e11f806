"""Types of what the methods of a Reranker return, for editors and type checkers alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    TypedDict,
    cast,
    overload,
)

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Required, Unpack  # of typing from Python 3.11 on

    from embedlib.batching.usage import Usage
    from embedlib.session.scoring import Activation, Scores

    class PairScore(np.float32, Any):  # type: ignore[misc] # the members of both
        """The score of one pair: a float32, or float32[num_labels] of a model with several."""

else:
    PairScore = np.float32

Pair: TypeAlias = tuple[str, str] | list[str]
"""Query and document."""


class PairOptions(TypedDict, total=False):
    """Options of `Reranker.predict` and `apredict`, whatever they return."""

    activation_fn: Activation | None
    apply_softmax: bool | None
    instruction: str | None
    raw_scores: bool
    usage: Usage | None


class _Options(PairOptions, total=False):
    device: str | None
    pool: None
    chunk_size: None
    processing_kwargs: Mapping[str, NoReturn] | None


class ScoreOptions(_Options, total=False):
    """Options of `Reranker.predict` with which it returns an array for a list of pairs."""

    convert_to_numpy: Literal[True]
    convert_to_tensor: Literal[False]


class ScoreTensorOptions(_Options, total=False):
    """Those with which it returns one tensor."""

    convert_to_numpy: bool
    convert_to_tensor: Required[Literal[True]]


class ScoreTensorsOptions(_Options, total=False):
    """Those with which it returns a tensor of each pair."""

    convert_to_numpy: Required[Literal[False]]
    convert_to_tensor: Literal[False]


class Predict(Protocol):
    """`Reranker.predict`, which says what the arguments mean."""

    @overload
    def __call__(
        self,
        inputs: Iterable[Pair],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Scores: ...

    @overload
    def __call__(
        self,
        inputs: Pair,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[ScoreOptions],
    ) -> PairScore: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[Pair] | Pair,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[ScoreTensorOptions],
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[Pair],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[ScoreTensorsOptions],
    ) -> list[Tensor]: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[Sequence[str]] | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        instruction: str | None = None,
        raw_scores: bool = False,
        usage: Usage | None = None,
        processing_kwargs: Mapping[str, NoReturn] | None = None,
        sentences: Iterable[Sequence[str]] | Sequence[str] | None = None,
    ) -> Any: ...


def as_predict(method: Callable[..., Any]) -> Predict:
    """Return the method, with the types of its results."""
    return cast(Predict, method)


class AsyncPredict(Protocol):
    """`Reranker.apredict`; `Reranker.predict` says what the arguments mean."""

    @overload
    def __call__(
        self,
        inputs: Iterable[Pair],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[PairOptions],
    ) -> Coroutine[Any, Any, Scores]: ...

    @overload
    def __call__(
        self,
        inputs: Pair,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[PairOptions],
    ) -> Coroutine[Any, Any, PairScore]: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[Sequence[str]] | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[PairOptions],
    ) -> Coroutine[Any, Any, Any]: ...


def as_async_predict(method: Callable[..., Any]) -> AsyncPredict:
    """Return the method, with the types of its results."""
    return cast(AsyncPredict, method)


class _Place(TypedDict):
    corpus_id: int
    score: float


class RankedDocument(_Place, total=False):
    """A document in the result of `Reranker.rank`; `text` on request."""

    text: str

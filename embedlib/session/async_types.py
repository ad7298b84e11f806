"""Types of what `Embedder.aencode` returns, for editors and type checkers alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast, overload

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack  # of typing from Python 3.11 on

    from embedlib.batching.usage import Usage
    from embedlib.models.prompts import Examples, Role
    from embedlib.vectors.arrays import AnyVectors, Vectors
    from embedlib.vectors.tokens import Span


class PromptOptions(TypedDict, total=False):
    """Options of `Embedder.aencode` whatever it returns."""

    normalize_embeddings: bool
    truncate_dim: int | None
    role: Role | None
    task: str | None
    examples: Examples | None
    usage: Usage | None


class AsyncArrayOptions(PromptOptions, total=False):
    """Options with which it returns an array."""

    output_value: Literal["sentence_embedding"]
    precision: str | None
    chunks: Sequence[Span] | None


class AsyncTokenOptions(PromptOptions, total=False):
    """Those with which it returns the vectors of tokens."""

    output_value: Required[Literal["token_embeddings", "multi_vector"]]


class AsyncSparseOptions(PromptOptions, total=False):
    """Those with which it returns weights by token id."""

    output_value: Required[Literal["sparse"]]
    max_active_dims: int | None


class AsyncEncode(Protocol):
    """`Embedder.aencode`; `Embedder.encode` says what the arguments mean."""

    @overload
    def __call__(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[AsyncArrayOptions],
    ) -> Coroutine[Any, Any, AnyVectors]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        inputs: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[AsyncTokenOptions],
    ) -> Coroutine[Any, Any, Vectors]: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[AsyncTokenOptions],
    ) -> Coroutine[Any, Any, list[Vectors]]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        inputs: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[AsyncSparseOptions],
    ) -> Coroutine[Any, Any, dict[int, float]]: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[AsyncSparseOptions],
    ) -> Coroutine[Any, Any, list[dict[int, float]]]: ...

    @overload
    def __call__(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: str | None = "float32",
        output_value: str = "sentence_embedding",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
        chunks: Sequence[Span] | None = None,
        max_active_dims: int | None = None,
    ) -> Coroutine[Any, Any, Any]: ...


def as_async_encode(method: Callable[..., Any]) -> AsyncEncode:
    """Return the method, with the types of its results."""
    return cast(AsyncEncode, method)

"""Types of what `aencode` and `submit_batch` return, for editors and type checkers alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, overload

from embedlib.session.result_types import TextOptions, VectorOptions

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack  # of typing from Python 3.11 on

    from embedlib.batching.usage import Usage
    from embedlib.models.prompts import Examples, Role
    from embedlib.vectors.arrays import AnyVectors, Vectors
    from embedlib.vectors.sparse import SparseVector
    from embedlib.vectors.tokens import Span


class AsyncArrayOptions(VectorOptions, total=False):
    """Options of `Embedder.aencode` with which it returns an array."""

    output_value: Literal["sentence_embedding"]
    chunks: Sequence[Span] | None


class AsyncFloat32Options(AsyncArrayOptions, total=False):
    """Those with which it is an array of float32."""

    precision: Literal["float32"] | None


class AsyncCodedOptions(AsyncArrayOptions, total=False):
    """Those with which the precision decides its type."""

    precision: str


class AsyncTokenOptions(VectorOptions, total=False):
    """Those with which it returns the vectors of tokens."""

    output_value: Required[Literal["token_embeddings", "multi_vector"]]


class AsyncSparseOptions(VectorOptions, total=False):
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
        **options: Unpack[AsyncFloat32Options],
    ) -> Coroutine[Any, Any, Vectors]: ...

    @overload
    def __call__(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[AsyncCodedOptions],
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
    ) -> Coroutine[Any, Any, SparseVector]: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[AsyncSparseOptions],
    ) -> Coroutine[Any, Any, list[SparseVector]]: ...

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


class BatchTokenOptions(TextOptions, total=False):
    """Options of `Embedder.submit_batch` with which the future is that of the vectors of tokens."""

    output_value: Required[Literal["token_embeddings", "multi_vector"]]


class BatchSparseOptions(TextOptions, total=False):
    """Those with which it is that of weights by token id."""

    output_value: Required[Literal["sparse"]]
    max_active_dims: int | None


class BatchChunkOptions(TextOptions, total=False):
    """Those with which it is that of the vectors of chunks."""

    chunks: Required[Sequence[Sequence[Span]]]


class SubmitBatch(Protocol):
    """`Embedder.submit_batch`, which says what the arguments mean."""

    @overload
    def __call__(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[TextOptions],
    ) -> Future[Vectors]: ...

    @overload
    def __call__(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[BatchTokenOptions],
    ) -> Future[list[Vectors]]: ...

    @overload
    def __call__(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[BatchSparseOptions],
    ) -> Future[list[SparseVector]]: ...

    @overload
    def __call__(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[BatchChunkOptions],
    ) -> Future[list[Vectors]]: ...

    @overload
    def __call__(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        role: Role | None = "document",
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
        output_value: str = "sentence_embedding",
        max_active_dims: int | None = None,
        chunks: Sequence[Sequence[Span]] | None = None,
    ) -> Future[Any]: ...


def as_submit_batch(method: Callable[..., Any]) -> SubmitBatch:
    """Return the method, with the types of its results."""
    return cast(SubmitBatch, method)

"""Types of what `Embedder.encode` returns, for editors and type checkers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypedDict, cast, overload

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Required, Unpack  # of typing from Python 3.11 on

    from embedlib.batching.usage import Usage
    from embedlib.models.prompts import Examples, Role
    from embedlib.vectors.arrays import AnyVectors, Vectors
    from embedlib.vectors.sparse import SparseVector
    from embedlib.vectors.tokens import Span


class TextOptions(TypedDict, total=False):
    """Options that all methods for texts have."""

    role: Role | None
    task: str | None
    examples: Examples | None
    usage: Usage | None


class VectorOptions(TextOptions, total=False):
    """Those of `Embedder.encode` and `aencode`, whatever they return."""

    normalize_embeddings: bool
    truncate_dim: int | None


class _Options(VectorOptions, total=False):
    device: str | Sequence[str] | None
    pool: None
    chunk_size: None
    processing_kwargs: Mapping[str, NoReturn] | None


class _SentenceOptions(_Options, total=False):
    output_value: Literal["sentence_embedding"]
    chunks: Sequence[Span] | None
    sentences: str | Iterable[str] | None


class ArrayOptions(_SentenceOptions, total=False):
    """Options of `Embedder.encode` with which it returns an array."""

    convert_to_numpy: Literal[True]
    convert_to_tensor: Literal[False]


class Float32Options(ArrayOptions, total=False):
    """Those with which it is an array of float32."""

    precision: Literal["float32"] | None


class CodedOptions(ArrayOptions, total=False):
    """Those with which the precision decides its type."""

    precision: str


class TensorOptions(_SentenceOptions, total=False):
    """Those with which it returns one tensor."""

    precision: str | None
    convert_to_numpy: bool
    convert_to_tensor: Required[Literal[True]]


class TensorsOptions(_SentenceOptions, total=False):
    """Those with which it returns a tensor of each text."""

    precision: str | None
    convert_to_numpy: Required[Literal[False]]
    convert_to_tensor: Literal[False]


class OutputOptions(_Options, total=False):
    """Those with which it returns something else than one vector for each text."""

    precision: Literal["float32"] | None
    convert_to_numpy: Literal[True]
    convert_to_tensor: Literal[False]


class TokenOptions(OutputOptions, total=False):
    """Those with which it returns the vectors of tokens."""

    output_value: Required[Literal["token_embeddings", "multi_vector"]]


class SparseOptions(OutputOptions, total=False):
    """Those with which it returns weights by token id."""

    output_value: Required[Literal["sparse"]]


class Encode(Protocol):
    """`Embedder.encode`, which says what the arguments mean."""

    @overload
    def __call__(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[Float32Options],
    ) -> Vectors: ...

    @overload
    def __call__(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[CodedOptions],
    ) -> AnyVectors: ...

    @overload
    def __call__(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[TensorOptions],
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        inputs: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[TensorsOptions],
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[TensorsOptions],
    ) -> list[Tensor]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        inputs: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[TokenOptions],
    ) -> Vectors: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[TokenOptions],
    ) -> list[Vectors]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        inputs: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[SparseOptions],
    ) -> SparseVector: ...

    @overload
    def __call__(
        self,
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        **options: Unpack[SparseOptions],
    ) -> list[SparseVector]: ...

    @overload
    def __call__(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | Sequence[str] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
        usage: Usage | None = None,
        chunks: Sequence[Span] | None = None,
        max_active_dims: int | None = None,
        processing_kwargs: Mapping[str, NoReturn] | None = None,
        sentences: str | Iterable[str] | None = None,
    ) -> Any: ...


def as_encode(method: Callable[..., Any]) -> Encode:
    """Return the method, with the types of its results."""
    return cast(Encode, method)

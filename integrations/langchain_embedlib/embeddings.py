"""EmbedlibEmbeddings: an Embedder behind LangChain's Embeddings interface."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from langchain_core.embeddings import Embeddings
from pydantic import Field

from embedlib import Embedder
from embedlib.errors import ConfigError, InputError, nearest
from langchain_embedlib.holder import ModelHolder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from langchain_embedlib.fields import EmbeddingsFields

VECTOR_ARGUMENTS = ("prompt_name", "prompt", "task", "normalize_embeddings", "truncate_dim")
"""Arguments of `Embedder.encode` that change the vectors."""

INERT_ARGUMENTS = ("batch_size", "device")
"""Accepted with the values that `Embedder.encode` allows; none of them changes a vector."""

FIXED_ARGUMENTS: Final[Mapping[str, str]] = {
    "output_value": "sentence_embedding",
    "precision": "float32",
}
"""Accepted with this value only: LangChain gets one list of floats per text."""

CONVERSION_ARGUMENTS = ("convert_to_numpy", "convert_to_tensor")
"""Accepted with any value: LangChain always gets lists of floats."""

THEIR_MODEL = "sentence-transformers/all-mpnet-base-v2"
"""What `HuggingFaceEmbeddings()` loads. Source: as below."""

ENCODE_ARGUMENTS = (*VECTOR_ARGUMENTS, *INERT_ARGUMENTS, *FIXED_ARGUMENTS, *CONVERSION_ARGUMENTS)

_LOOP_NUMBERS = 100_000
"""Numbers that an event loop makes Python floats of at a time, which takes some milliseconds; on
another thread it would hold the loop up as well, since numpy keeps the interpreter's lock."""


class EmbedlibEmbeddings(ModelHolder, Embeddings):
    """Embeddings for LangChain, computed in this process by an `embedlib.Embedder`.

    Documents are embedded by `Embedder.encode_document` on the bulk lane, queries by
    `Embedder.encode_query` with priority, each with the model's own prompt. Texts are not altered.
    Any number of threads and tasks may use one object.

        embeddings = EmbedlibEmbeddings(model="sentence-transformers/all-MiniLM-L6-v2")
        embeddings = EmbedlibEmbeddings(embedder=embedder)  # shared with the rest of the program

    The fields are those of langchain-huggingface's `HuggingFaceEmbeddings`; they cannot be changed
    afterwards. Source: langchain_huggingface/embeddings/huggingface.py of langchain-huggingface
    1.2.3.
    """

    encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `Embedder.encode` for documents, such as `normalize_embeddings` or `prompt`."""
    query_encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The same for queries; if empty, `encode_kwargs` apply to queries too."""
    multi_process: bool = False
    """Must be False: one Embedder uses the whole machine."""
    show_progress: bool = False
    """Whether `embed_documents` shows a progress bar."""

    _held_kind: ClassVar[type[Any]] = Embedder
    _held_name: ClassVar[str] = "embedder"
    _their_model: ClassVar[str] = (
        f", for the default of HuggingFaceEmbeddings model={THEIR_MODEL!r}"
    )
    _their_fields: ClassVar[Mapping[str, str]] = {
        **ModelHolder._their_fields,
        "query_instruction": "pass query_encode_kwargs={'prompt': ...}",
        "embed_instruction": "pass encode_kwargs={'prompt': ...}",
    }

    def __init__(
        self, *, embedder: Embedder | None = None, **fields: Unpack[EmbeddingsFields]
    ) -> None:
        """Load the model, or use a given Embedder, which the caller closes.

        Args:
            embedder: instead of `model`.
            **fields: the fields of this class; `model` is another name of `model_name`.

        Raises:
            ConfigError: an option is unknown, out of range or has no effect here.
            pydantic.ValidationError: a field has the wrong type.
            EmbedlibError: the model cannot be loaded, see `Embedder`.
        """
        self._check_fields(fields, ENCODE_ARGUMENTS, "encode_kwargs")
        super().__init__(**dict[str, Any](fields))
        self._check(embedder)
        self._hold(embedder)
        try:
            self._check_makes_one_vector()
            # Without texts this computes nothing, but checks every argument.
            for encode, kwargs in (
                (self.embedder.encode_document, self.encode_kwargs),
                (self.embedder.encode_query, self._kwargs_for_queries),
            ):
                checked = _only(kwargs, (*VECTOR_ARGUMENTS, *INERT_ARGUMENTS))
                encode([], show_progress_bar=False, **checked)
        except BaseException:
            self.close()
            raise

    def _check(self, embedder: Embedder | None) -> None:
        """Refuse unsupported and contradictory fields, before a model is loaded."""
        self._check_model(embedder)
        if self.multi_process:
            raise ConfigError(
                "multi_process = True is not supported; leave it out: one Embedder uses all cores"
            )
        default = self.model_kwargs.get("default_prompt_name")
        if default is not None:
            raise ConfigError(
                f"model_kwargs: default_prompt_name = {default!r} would have no effect, since "
                "queries and documents have their own prompts here; pass "
                f"encode_kwargs={{'prompt_name': {default!r}}} to give it to both"
            )
        for name in ("encode_kwargs", "query_encode_kwargs"):
            _check_encode_kwargs(name, getattr(self, name))
        has_prompt = self.encode_kwargs.get("prompt") or self.encode_kwargs.get("prompt_name")
        if has_prompt and not self.query_encode_kwargs:
            warnings.warn(
                "encode_kwargs names a prompt and query_encode_kwargs is empty: queries get the "
                "same prompt, as in HuggingFaceEmbeddings; name their prompt in "
                "query_encode_kwargs",
                stacklevel=3,
            )

    def _check_makes_one_vector(self) -> None:
        spec = self.embedder.spec
        if spec.late_interaction is not None or spec.is_sparse:
            kind = "sparse" if spec.is_sparse else "a late-interaction model, with many"
            raise ConfigError(
                f"EmbedlibEmbeddings needs one vector per text, and this model is {kind}; take "
                "another model, or load it with embedlib.Embedder"
            )

    @property
    def embedder(self) -> Embedder:
        """The Embedder that embeds the texts."""
        embedder: Embedder = self._held
        return embedder

    @property
    def _kwargs_for_queries(self) -> dict[str, Any]:
        return self.query_encode_kwargs or self.encode_kwargs

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents, in their order.

        Args:
            texts: what to embed.

        Raises:
            EmbedlibError: see `Embedder.encode`.
        """
        check_is_list(texts)
        options = _only(self.encode_kwargs, VECTOR_ARGUMENTS)
        vectors = self.embedder.encode_document(
            texts, show_progress_bar=self.show_progress, **options
        )
        return _floats(vectors)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query.

        Args:
            text: what to embed.

        Raises:
            EmbedlibError: see `Embedder.encode`.
        """
        options = _only(self._kwargs_for_queries, VECTOR_ARGUMENTS)
        # In a list, so that anything but a str is refused.
        return _floats(self.embedder.encode_query([text], show_progress_bar=False, **options))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return what `embed_documents` returns without blocking the event loop."""
        check_is_list(texts)
        options = _only(self.encode_kwargs, VECTOR_ARGUMENTS)
        return await _afloats(await self.embedder.aencode_document(texts, **options))

    async def aembed_query(self, text: str) -> list[float]:
        """Return what `embed_query` returns without blocking the event loop."""
        options = _only(self._kwargs_for_queries, VECTOR_ARGUMENTS)
        return _floats(await self.embedder.aencode_query([text], **options))[0]


def _floats(vectors: Any) -> list[list[float]]:
    """Return float32[N, D] as Python floats."""
    rows: list[list[float]] = vectors.tolist()
    return rows


async def _afloats(vectors: Any) -> list[list[float]]:
    """Return what `_floats` returns; the event loop runs in between."""
    rows: list[list[float]] = []
    step = max(1, _LOOP_NUMBERS // vectors.shape[1])
    for first in range(0, len(vectors), step):
        if first:
            await asyncio.sleep(0)
        rows += _floats(vectors[first : first + step])
    return rows


def _only(kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: kwargs[name] for name in names if name in kwargs}


def check_is_list(texts: object) -> None:
    """Refuse a str in the place of a list of texts.

    Raises:
        InputError: it is one.
    """
    if isinstance(texts, str):
        raise InputError("texts is one str; embed_documents takes a list of texts")


def _check_encode_kwargs(field: str, kwargs: Mapping[str, Any]) -> None:
    for name, value in kwargs.items():
        if name in FIXED_ARGUMENTS and value != FIXED_ARGUMENTS[name]:
            raise ConfigError(
                f"{name} = {value!r} is not supported; it must be {FIXED_ARGUMENTS[name]!r}"
            )
        if name == "show_progress_bar":
            raise ConfigError(f"{field} cannot hold {name!r}; pass show_progress=True or False")
        if name not in ENCODE_ARGUMENTS:
            hint = nearest(name, ENCODE_ARGUMENTS)
            raise ConfigError(f"{field} cannot hold {name!r}; {hint}")

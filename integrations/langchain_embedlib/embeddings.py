"""EmbedlibEmbeddings: an Embedder behind LangChain's Embeddings interface."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from langchain_core.embeddings import Embeddings
from pydantic import Field

from embedlib import Embedder
from embedlib.errors import ConfigError, InputError
from langchain_embedlib.holder import MODEL_OPTIONS, ModelHolder, nearest

VECTOR_ARGUMENTS = ("prompt_name", "prompt", "task", "normalize_embeddings", "truncate_dim")
"""Arguments of `Embedder.encode` that decide what a vector is."""

INERT_ARGUMENTS = ("batch_size", "device")
"""Accepted with the values `Embedder.encode` allows, none of which changes a vector."""

FIXED_ARGUMENTS = MappingProxyType({"output_value": "sentence_embedding", "precision": "float32"})
"""Accepted with this value: LangChain gets one list of floats for a text."""

CONVERSION_ARGUMENTS = ("convert_to_numpy", "convert_to_tensor")
"""Accepted with any value: LangChain gets lists of floats in either case."""

ENCODE_ARGUMENTS = (*VECTOR_ARGUMENTS, *INERT_ARGUMENTS, *FIXED_ARGUMENTS, *CONVERSION_ARGUMENTS)


class EmbedlibEmbeddings(ModelHolder, Embeddings):
    """Embeddings for LangChain, computed in this process by an `embedlib.Embedder`.

    Documents go through `Embedder.encode_document` on the bulk lane, queries through
    `Embedder.encode_query` ahead of them, each with the model's own prompt. Texts are embedded as
    they are. Any number of threads and tasks may use one object.

        embeddings = EmbedlibEmbeddings(model="sentence-transformers/all-MiniLM-L6-v2")
        embeddings = EmbedlibEmbeddings(embedder=embedder)  # shared with the rest of the program

    The fields are those of langchain-huggingface's `HuggingFaceEmbeddings`; they cannot be changed
    afterwards. Source: langchain_huggingface/embeddings/huggingface.py of langchain-huggingface
    1.2.3.
    """

    encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `Embedder.encode` for documents, such as `normalize_embeddings` or `prompt`."""
    query_encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The same for queries; if empty, `encode_kwargs` hold for queries too."""
    multi_process: bool = False
    """Only False: one Embedder uses the whole machine."""
    show_progress: bool = False
    """Whether `embed_documents` shows a progress bar."""

    _held_kind: ClassVar[type[Any]] = Embedder
    _held_name: ClassVar[str] = "embedder"

    def __init__(self, *, embedder: Embedder | None = None, **fields: Any) -> None:
        """Load the model, or take an Embedder that somebody else made and will close.

        Args:
            embedder: instead of `model`.
            **fields: the fields of this class; `model` is another name of `model_name`.

        Raises:
            ConfigError: an option is unknown, out of range or of no use here.
            pydantic.ValidationError: a field has the wrong type.
            EmbedlibError: the model cannot be loaded, see `Embedder`.
        """
        _check_fields(fields, type(self))
        super().__init__(**fields)
        self._check(embedder)
        self._hold(embedder)
        try:
            # Nothing is computed for no texts, but every argument is checked.
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
        """Refuse what cannot be done and what contradicts itself, before a model is loaded."""
        self._check_model(embedder)
        if self.multi_process:
            raise ConfigError(
                "multi_process = True is not supported; leave it out: one Embedder uses all cores"
            )
        default = self.model_kwargs.get("default_prompt_name")
        if default is not None:
            raise ConfigError(
                f"model_kwargs: default_prompt_name = {default!r} would change nothing, since "
                "queries and documents have prompts of their own here; pass "
                f"encode_kwargs={{'prompt_name': {default!r}}} to give it to both"
            )
        for name in ("encode_kwargs", "query_encode_kwargs"):
            _check_encode_kwargs(name, getattr(self, name))
        has_prompt = self.encode_kwargs.get("prompt") or self.encode_kwargs.get("prompt_name")
        if has_prompt and not self.query_encode_kwargs:
            warnings.warn(
                "encode_kwargs names a prompt and query_encode_kwargs is empty: queries get the "
                "same prompt, as in HuggingFaceEmbeddings; say in query_encode_kwargs what they "
                "are to get",
                stacklevel=3,
            )

    @property
    def embedder(self) -> Embedder:
        """The Embedder that does the work."""
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
        _check_is_list(texts)
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
        # As a list of one, so that anything but a str is refused.
        return _floats(self.embedder.encode_query([text], show_progress_bar=False, **options))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return what `embed_documents` returns without blocking the event loop."""
        _check_is_list(texts)
        options = _only(self.encode_kwargs, VECTOR_ARGUMENTS)
        return _floats(await self.embedder.aencode_document(texts, **options))

    async def aembed_query(self, text: str) -> list[float]:
        """Return what `embed_query` returns without blocking the event loop."""
        options = _only(self._kwargs_for_queries, VECTOR_ARGUMENTS)
        return _floats(await self.embedder.aencode_query([text], **options))[0]


def _floats(vectors: Any) -> list[list[float]]:
    """Return float32[N, D] as Python floats."""
    rows: list[list[float]] = vectors.tolist()
    return rows


def _only(kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: kwargs[name] for name in names if name in kwargs}


def _check_is_list(texts: object) -> None:
    if isinstance(texts, str):
        raise InputError("texts is one str; embed_documents takes a list of texts")


def _check_fields(names: Collection[str], cls: type[EmbedlibEmbeddings]) -> None:
    """Name the place where an option belongs that is no field."""
    known = ("embedder", "model", *cls.model_fields)
    for name in names:
        if name in known:
            continue
        if name in MODEL_OPTIONS:
            hint = f"pass model_kwargs={{{name!r}: ...}}"
        elif name in ENCODE_ARGUMENTS:
            hint = f"pass encode_kwargs={{{name!r}: ...}}"
        else:
            hint = nearest(name, known)
        raise ConfigError(f"{cls.__name__} has no field {name!r}; {hint}")
    if "model" in names and "model_name" in names:
        raise ConfigError("model and model_name are two names of one field; pass one")


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

"""EmbedlibEmbeddings: an Embedder behind LangChain's Embeddings interface."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from typing_extensions import Self

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, InputError

VECTOR_ARGUMENTS = ("prompt_name", "prompt", "normalize_embeddings", "truncate_dim")
"""Arguments of `Embedder.encode` that decide what a vector is."""

INERT_ARGUMENTS = ("batch_size", "device", "output_value", "precision")
"""Accepted with the values `Embedder.encode` allows, none of which changes a vector."""

CONVERSION_ARGUMENTS = ("convert_to_numpy", "convert_to_tensor")
"""Accepted with any value: LangChain gets lists of floats in either case."""

ENCODE_ARGUMENTS = (*VECTOR_ARGUMENTS, *INERT_ARGUMENTS, *CONVERSION_ARGUMENTS)
EMBEDDER_OPTIONS = ("trust_remote_code", *(item.name for item in dataclasses.fields(Config)))


class EmbedlibEmbeddings(BaseModel, Embeddings):
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

    # Input is hidden in pydantic's messages because a token may be part of it.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        populate_by_name=True,
        protected_namespaces=(),
    )

    model_name: str | Path | None = Field(default=None, alias="model")
    """A folder, a hub name or `package:NAME`."""
    cache_folder: str | Path | None = None
    """Where hub models are kept; None: the hub's own cache."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Options of the `Embedder`, such as `revision`, `device`, `prompts` or `truncate_dim`. A token
    is handed to the Embedder and not kept here."""
    encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `Embedder.encode` for documents, such as `normalize_embeddings` or `prompt`."""
    query_encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The same for queries; if empty, `encode_kwargs` hold for queries too."""
    multi_process: bool = False
    """Only False: one Embedder uses the whole machine."""
    show_progress: bool = False
    """Whether `embed_documents` shows a progress bar."""

    _embedder: Embedder = PrivateAttr()
    _owns_embedder: bool = PrivateAttr()

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
        self._owns_embedder = embedder is None
        self._embedder = self._load() if embedder is None else embedder
        try:
            # Nothing is computed for no texts, but every argument is checked.
            for kwargs in (self.encode_kwargs, self._kwargs_for_queries):
                checked = _only(kwargs, (*VECTOR_ARGUMENTS, *INERT_ARGUMENTS))
                self._embedder.encode([], show_progress_bar=False, **checked)
        except BaseException:
            self.close()
            raise

    def _check(self, embedder: Embedder | None) -> None:
        """Refuse what cannot be done and what contradicts itself, before a model is loaded."""
        if embedder is None and self.model_name is None:
            raise ConfigError("no model was given; pass model=, or embedder= to share an Embedder")
        if embedder is not None:
            if not isinstance(embedder, Embedder):
                raise ConfigError(
                    f"embedder is a {type(embedder).__name__}; it must be an embedlib.Embedder"
                )
            if self.model_name is not None or self.cache_folder is not None or self.model_kwargs:
                raise ConfigError(
                    "model, cache_folder and model_kwargs say how to load a model, and embedder "
                    "has one; pass either"
                )
        if self.cache_folder is not None and "cache_folder" in self.model_kwargs:
            raise ConfigError("cache_folder is given twice; leave it out of model_kwargs")
        if "config" in self.model_kwargs:
            raise ConfigError(
                "model_kwargs cannot hold a config; pass its options one by one, or make the "
                "Embedder yourself and pass embedder="
            )
        if self.multi_process:
            raise ConfigError(
                "multi_process = True is not supported; leave it out: one Embedder uses all cores"
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

    def _load(self) -> Embedder:
        assert self.model_name is not None
        options = dict(self.model_kwargs)
        if self.cache_folder is not None:
            options["cache_folder"] = self.cache_folder
        if isinstance(options.get("token"), str):
            # Kept where no repr, dump or pickle finds it.
            del self.model_kwargs["token"]
        return Embedder(self.model_name, **options)

    @property
    def embedder(self) -> Embedder:
        """The Embedder that does the work."""
        return self._embedder

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
        vectors = self._embedder.encode_document(
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
        return _floats(self._embedder.encode_query([text], show_progress_bar=False, **options))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return what `embed_documents` returns without blocking the event loop."""
        _check_is_list(texts)
        options = _only(self.encode_kwargs, VECTOR_ARGUMENTS)
        return _floats(await self._embedder.aencode_document(texts, **options))

    async def aembed_query(self, text: str) -> list[float]:
        """Return what `embed_query` returns without blocking the event loop."""
        options = _only(self._kwargs_for_queries, VECTOR_ARGUMENTS)
        return _floats(await self._embedder.aencode_query([text], **options))[0]

    # Life cycle.

    def close(self) -> None:
        """Free the model; an Embedder that was passed in stays open."""
        if self._owns_embedder:
            self._embedder.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    def __copy__(self) -> Self:
        """Return one that uses the same Embedder and does not close it."""
        copied = super().__copy__()
        copied._owns_embedder = False
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return one that uses the same Embedder and does not close it."""
        memo = {} if memo is None else memo
        memo[id(self._embedder)] = self._embedder  # threads and engines are not copied
        copied = super().__deepcopy__(memo)
        copied._owns_embedder = False
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the fields: the other process loads the model again."""
        if self.model_name is None:
            raise TypeError(
                "an EmbedlibEmbeddings made with embedder= cannot be pickled; make it with model= "
                "and it is loaded again in the other process"
            )
        if isinstance(self._embedder.config.token, str):
            raise TypeError(
                "an EmbedlibEmbeddings made with a token cannot be pickled: tokens are never "
                "written; set HF_TOKEN or log in with `hf auth login`, and pass none"
            )
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return partial(type(self), **given), ()


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
        if name in EMBEDDER_OPTIONS:
            hint = f"pass model_kwargs={{{name!r}: ...}}"
        elif name in ENCODE_ARGUMENTS:
            hint = f"pass encode_kwargs={{{name!r}: ...}}"
        else:
            hint = _nearest(name, known)
        raise ConfigError(f"{cls.__name__} has no field {name!r}; {hint}")
    if "model" in names and "model_name" in names:
        raise ConfigError("model and model_name are two names of one field; pass one")


def _check_encode_kwargs(field: str, kwargs: Mapping[str, Any]) -> None:
    for name in kwargs:
        if name == "show_progress_bar":
            raise ConfigError(f"{field} cannot hold {name!r}; pass show_progress=True or False")
        if name not in ENCODE_ARGUMENTS:
            hint = _nearest(name, ENCODE_ARGUMENTS)
            raise ConfigError(f"{field} cannot hold {name!r}; {hint}")


def _nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"

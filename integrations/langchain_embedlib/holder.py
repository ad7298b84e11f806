"""ModelHolder: the fields that select a model, and loading, copying and closing it."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from typing_extensions import Self

from embedlib.config import Config
from embedlib.errors import ConfigError, nearest

MODEL_OPTIONS = ("trust_remote_code", *(item.name for item in dataclasses.fields(Config)))
"""Allowed keys of `model_kwargs`."""


class ModelHolder(BaseModel):
    """A LangChain object around an Embedder or a Reranker, which it loaded or was given."""

    # Hides input in pydantic's messages, because it may contain a token.
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
    """Where hub models are stored; None: the hub's own cache."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Options of the model, such as `revision`, `device` or `max_seq_tokens`. A token is passed on
    and not stored here."""

    _held_kind: ClassVar[type[Any]]
    """Class of the held object: Embedder or Reranker."""
    _held_name: ClassVar[str]
    """Name of the argument for a given one."""
    _their_model: ClassVar[str] = ""
    """What a message adds about the model that another class loads without being asked."""
    _their_fields: ClassVar[Mapping[str, str]] = {
        "max_length": "pass model_kwargs={'max_seq_tokens': ...}"
    }
    """Fields of langchain-community's classes, and what to write instead."""

    _held: Any = PrivateAttr()
    _owner: weakref.ref[ModelHolder] | None = PrivateAttr()
    """The object that loaded the model and closes it, also in its copies; None: it was given."""

    @classmethod
    def _check_fields(
        cls, fields: Mapping[str, object], arguments: Collection[str], arguments_field: str
    ) -> None:
        """Refuse unknown fields, and say where an option belongs that is not a field.

        Args:
            fields: what was given.
            arguments: of the method that computes.
            arguments_field: holds those.

        Raises:
            ConfigError: there is no such field, a field is given by two names, or a loaded model as
                the name of one.
        """
        known = (cls._held_name, "model", *cls.model_fields)
        for name in fields:
            if name in known:
                continue
            if name in MODEL_OPTIONS:
                hint = f"pass model_kwargs={{{name!r}: ...}}"
            elif name in arguments:
                hint = f"pass {arguments_field}={{{name!r}: ...}}"
            else:
                hint = cls._their_fields.get(name) or nearest(name, known)
            raise ConfigError(f"{cls.__name__} has no field {name!r}; {hint}")
        if "model" in fields and "model_name" in fields:
            raise ConfigError("model and model_name are the same field; pass one")
        model = fields.get("model", fields.get("model_name"))
        if isinstance(model, cls._held_kind):
            raise ConfigError(f"model = {model!r} is loaded already; pass {cls._held_name}=")

    def _check_model(self, given: object) -> None:
        """Refuse contradictory fields, before a model is loaded.

        Raises:
            ConfigError: no model was given, or more than one.
        """
        kind, name = self._held_kind.__name__, self._held_name
        if given is None and self.model_name is None:
            raise ConfigError(
                f"no model was given; pass model={self._their_model}, or {name}= to share one"
            )
        if given is not None:
            if not isinstance(given, self._held_kind):
                raise ConfigError(
                    f"{name} is a {type(given).__name__}; it must be an embedlib.{kind}"
                )
            if self.model_name is not None or self.cache_folder is not None or self.model_kwargs:
                raise ConfigError(
                    f"model, cache_folder and model_kwargs say how to load a model, and {name} "
                    "is a loaded one; pass one or the other"
                )
        if self.cache_folder is not None and "cache_folder" in self.model_kwargs:
            raise ConfigError("cache_folder is given twice; leave it out of model_kwargs")
        if "config" in self.model_kwargs:
            raise ConfigError(
                "model_kwargs cannot hold a config; pass its options one by one, or make the "
                f"{kind} yourself and pass {name}="
            )

    def _hold(self, given: Any) -> None:
        """Load the model, or use the given one."""
        # First: `==` compares in this order, and references by `==` of their objects, without end.
        self._held = self._load() if given is None else given
        self._owner = weakref.ref(self) if given is None else None

    def _load(self) -> Any:
        assert self.model_name is not None
        options = dict(self.model_kwargs)
        if self.cache_folder is not None:
            options["cache_folder"] = self.cache_folder
        if isinstance(options.get("token"), str):
            # Not stored in a field, where repr, dump and pickle would show it.
            del self.model_kwargs["token"]
        return self._held_kind(self.model_name, **options)

    def close(self) -> None:
        """Close the model, unless it was given or this is a copy."""
        if self._owner is not None and self._owner() is self:
            self._held.close()

    def __enter__(self) -> Self:
        """Return this object; the end of the block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the model, unless it was given."""
        self.close()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy that uses the same model."""
        memo = {} if memo is None else memo
        memo[id(self._held)] = self._held  # threads and engines are not copied
        return super().__deepcopy__(memo)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields: unpickling loads the model again."""
        cls = type(self)
        if self.model_name is None:
            raise TypeError(
                f"an {cls.__name__} made with {self._held_name}= cannot be pickled; make it with "
                "model=, which unpickling loads again"
            )
        if isinstance(self._held.config.token, str):
            raise TypeError(
                f"an {cls.__name__} made with a token cannot be pickled, since tokens are never "
                "written; set HF_TOKEN or log in with `hf auth login`, and pass no token"
            )
        given = {name: getattr(self, name) for name in cls.model_fields}
        return partial(cls, **given), ()

"""Config: every option of an Embedder, in one frozen object that checks itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeGuard, get_args

from embedlib.errors import ConfigError

PrecisionName = Literal["auto", "float32", "bf16", "fp8", "int8"]
OnTruncate = Literal["warn", "error", "ignore", "chunk"]
VectorPrecision = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]

_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = MappingProxyType(
    {
        "revision": ((str,), "a str"),
        "token": ((str, bool), "a str, True or False"),
        "cache_folder": ((str, os.PathLike), "a path"),
        "local_files_only": ((bool,), "True or False"),
        "template": ((str,), "a str"),
        "engine_cache_dir": ((str, os.PathLike), "a path"),
    }
)
"""Types of the options that are neither a number nor a choice, and how messages call them."""

FOREIGN_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "activation_fn": "pass it to rank or predict",
        "backend": "pass engine=",
        "batch_size": "batches are made by token budget; leave it out, or pass max_batch_tokens=",
        "cache_dir": "pass cache_folder=",
        "config_kwargs": "the model's files say it; leave it out",
        "default_activation_function": "pass activation_fn= to rank or predict",
        "dtype": "pass precision=",
        "max_length": "pass max_seq_tokens=",
        "max_seq_length": "pass max_seq_tokens=",
        "model_card_data": "there is no model card; leave it out",
        "model_kwargs": "pass precision= for a dtype, else leave it out; there is no torch",
        "modules": "give a model folder or a hub name",
        "normalize_embeddings": "pass it to encode",
        "num_labels": "the model's files say how many there are; leave it out",
        "parallel": "pass threads=, or several devices",
        "processor_kwargs": "pass max_seq_tokens= for model_max_length, else leave it out",
        "providers": "pass device=",
        "query_instruction_for_retrieval": "pass prompts={'query': ...}",
        "tokenizer_kwargs": "pass max_seq_tokens= for model_max_length, else leave it out",
        "torch_dtype": "pass precision=",
        "use_auth_token": "pass token=",
        "use_fp16": "pass precision=",
    }
)
"""Options of CrossEncoder, SentenceTransformer, FlagEmbedding and fastembed; what to do instead."""

EXAMPLE_KEYS = ("instruct", "query", "response")
"""Keys of a few-shot example."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Options of an `Embedder`, `Reranker` or `Classifier`; the defaults suit most programs.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    revision: str | None = None
    """Branch, tag or commit of a hub model. Pin a commit if vectors must never change."""
    token: str | bool | None = field(default=None, repr=False)
    """Hub token for private models; None: the token of your login."""
    cache_folder: str | Path | None = None
    """Folder for downloaded models; None: the hub's own cache."""
    local_files_only: bool = False
    """Never open a connection; loading fails if a file has not been downloaded."""

    prompts: Mapping[str, str] | None = None
    """Prompts by name; each replaces the model's own prompt of that name."""
    default_prompt_name: str | None = None
    """Name of the prompt that `encode` uses if a call names none; None: the model's default."""
    examples: Sequence[Mapping[str, str]] | None = None
    """Few-shot examples put in front of every query, each with `instruct`, `query`, `response`."""
    template: str | None = None
    """Name of the template (qwen3-reranker, mxbai-rerank-v2) for a reranker whose files have none.
    Models that embedlib knows by their hub name do not need it."""
    max_seq_tokens: int | None = None
    """Texts are truncated to this many tokens; fewer are faster. It must not exceed the number of
    positions of the model. None: the model's own limit."""
    on_truncate: OnTruncate = "warn"
    """What happens to a text that is too long. warn: it is truncated, and a warning names its row;
    ignore: it is truncated without a warning; error: the call raises `SequenceTooLongError`; chunk
    (embeddings only): it is divided into windows, and its vector is the mean of theirs."""
    truncate_dim: int | None = None
    """Keep only this many first dimensions (Matryoshka models); None: the model's own number."""
    quantization_ranges: Any = field(default=None, repr=False, compare=False)
    """For vectors in int8 and uint8: the ranges float32[2, D] that `Embedder.calibrate` returns, or
    the .npy file that contains them."""
    similarity_fn_name: Similarity | None = None
    """What `similarity` computes: cosine, dot, euclidean or manhattan; None: the model's own."""

    engine: str = "auto"
    """auto takes the fastest engine that runs here; `embedlib doctor` shows which one and why. The
    name is checked when a model is loaded, because other packages can add engines."""
    device: str | Sequence[str] | None = None
    """cpu, cuda or cuda:N; several of them, as a tuple or with commas; or all. None: the engine's
    first device. Each device gets an engine of its own, and all take work from one queue."""
    precision: PrecisionName = "auto"
    """auto takes the fastest precision that passed the fidelity gate (docs/engines.md)."""
    gpu_memory_fraction: float = 0.9
    """Share of a GPU's memory that a model may take."""
    threads: int | None = None
    """CPU cores to use; None: all cores that this process may run on."""
    engine_cache_dir: str | Path | None = None
    """Folder for engine directories; None: embedlib's folder in the user's cache."""

    max_batch_tokens: int | None = None
    """Token budget of a batch; None: the engine's measured best."""
    max_inflight_batches: int | None = None
    """Maximum bulk batches in flight; None: as many as keep the engine busy."""
    max_queued_texts: int = 8192
    """Maximum queued texts per lane; then bulk calls wait, and queries raise QueueFullError."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        for name in (
            "max_seq_tokens",
            "truncate_dim",
            "threads",
            "max_batch_tokens",
            "max_inflight_batches",
            "max_queued_texts",
        ):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name} = {value!r}; it must be a whole number of at least 1")
        for name, (types, what) in _TYPES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, types):
                raise ConfigError(f"{name} = {value!r:.60}; it must be {what}")
        if not isinstance(self.engine, str):
            raise ConfigError(f"engine = {self.engine!r:.60}; it must be a str")
        self._check_choice("precision", get_args(PrecisionName))
        self._check_devices()
        fraction = self.gpu_memory_fraction
        if type(fraction) not in (int, float) or not 0 < fraction <= 1:
            raise ConfigError(
                f"gpu_memory_fraction = {fraction!r}; it must be a number above 0 and at most 1"
            )
        self._check_choice("on_truncate", get_args(OnTruncate))
        if self.similarity_fn_name is not None:
            self._check_choice("similarity_fn_name", get_args(Similarity))
        if self.prompts is not None and not isinstance(self.prompts, Mapping):
            raise ConfigError(
                f"prompts = {self.prompts!r:.60}; it must be a dict of prompts by name"
            )
        for name, prompt in (self.prompts or {}).items():
            if not isinstance(name, str):
                raise ConfigError(f"prompts has the name {name!r:.60}; a name must be a str")
            if not isinstance(prompt, str):
                raise ConfigError(f"prompts[{name!r}] = {prompt!r}; a prompt must be a str")
        if self.examples is not None:
            object.__setattr__(self, "examples", check_examples(self.examples))

    def _check_choice(self, name: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            raise ConfigError(f"{name} = {value!r}; it must be one of {', '.join(allowed)}")

    def _check_devices(self) -> None:
        if self.device is None:
            return
        is_known = isinstance(self.device, Sequence)
        names = self.devices if is_known else ()
        if names == ("all",):
            return
        for name in names:
            is_known &= isinstance(name, str) and bool(re.fullmatch(r"cpu|cuda(:\d+)?", name))
        if not is_known:
            raise ConfigError(
                f"device = {self.device!r}; it must be cpu, cuda, cuda:N, several of these, or all"
            )
        if not names:
            raise ConfigError("device is empty; name one, or leave it out")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Config:
        """Build a Config from keyword options; the error for an unknown name suggests a known one.

        Raises:
            ConfigError: an option is unknown or out of range.
        """
        for name in options:
            if name in FOREIGN_OPTIONS:
                raise ConfigError(f"unknown option {name!r}; {FOREIGN_OPTIONS[name]}")
        check_names(cls, options)
        return cls(**options)

    @property
    def devices(self) -> tuple[str, ...]:
        """`device` as a tuple; empty if the engine decides."""
        if self.device is None:
            return ()
        if isinstance(self.device, str):
            return tuple(name.strip() for name in self.device.split(","))
        return tuple(self.device)

    @property
    def num_threads(self) -> int:
        """`threads`, or the number of cores this process may run on."""
        if self.threads is not None:
            return self.threads
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @property
    def engine_cache_path(self) -> Path:
        """`engine_cache_dir`, or embedlib's folder in the user's cache.

        Source: XDG Base Directory Specification 0.8, `XDG_CACHE_HOME`.
        """
        if self.engine_cache_dir is not None:
            return Path(self.engine_cache_dir)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "embedlib"


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number; True and False are not, although they are ints."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_examples(examples: object) -> tuple[Mapping[str, str], ...]:
    """Check few-shot examples and return copies of them.

    Raises:
        ConfigError: an example is not a mapping of `instruct`, `query` and `response` to str.
    """
    if not isinstance(examples, Sequence) or isinstance(examples, str):
        raise ConfigError(f"examples = {examples!r:.60}; it must be a list of examples")
    for index, example in enumerate(examples):
        is_example = isinstance(example, Mapping) and set(example) == set(EXAMPLE_KEYS)
        if not is_example or not all(isinstance(value, str) for value in example.values()):
            raise ConfigError(
                f"examples[{index}] = {example!r:.80}; it must have the keys "
                f"{', '.join(EXAMPLE_KEYS)}, each with a str"
            )
    return tuple({key: example[key] for key in EXAMPLE_KEYS} for example in examples)


def check_names(cls: type[Any], options: Mapping[str, Any]) -> None:
    """Reject options that are not fields of a dataclass; the error suggests the nearest name.

    Raises:
        ConfigError: an option is unknown.
    """
    known = [item.name for item in fields(cls)]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"unknown option {name!r}; {hint}")

"""Config: every option of an Embedder, in one frozen object that checks itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from embedlib.checks import (
    ARRAY_OR_FILE,
    COUNT,
    PATH,
    SECONDS,
    SHARE,
    SWITCH,
    TEXT,
    UNICODE,
    Kind,
    choice,
    is_sequence,
    is_switch,
    optional,
)
from embedlib.errors import ConfigError, nearest, shown
from embedlib.packages.foreign_options import FOREIGN_OPTIONS, asks_nothing
from embedlib.packages.imported import imported_torch
from embedlib.system.cores import usable_cores
from embedlib.system.user_folders import absolute, entered, expanded, user_cache

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ranges: TypeAlias = NDArray[Any] | Sequence[Sequence[float]] | str | Path
else:
    Ranges = Any  # the command reads the hints of the fields, and loads no numpy for it
"""float32[2, D], the minimum and the maximum of every dimension; or the .npy file with them."""

PrecisionName = Literal["auto", "float32", "bf16", "fp8", "int8", "int8-g128"]
OnTruncate = Literal["warn", "error", "ignore", "chunk"]
VectorPrecision = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
LateSimilarity = Literal["maxsim", "meanmaxsim"]
"""Of texts with one vector per token."""
AnySimilarity = Literal[Similarity, LateSimilarity]

ANY_DEVICES = "cpu, cuda, cuda:N, several of these, or all"
"""What the option `device` may be."""

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
    """Keep only this many first dimensions (Matryoshka models), or all, if there are fewer; None:
    the model's own number."""
    max_active_dims: int | None = None
    """Keep only this many weights of a sparse vector, the greatest; None: the model's own number,
    or all."""
    quantization_ranges: Ranges | None = field(default=None, repr=False, compare=False)
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
    """auto takes the fastest precision that passed the fidelity gate (docs/engines.md). On a CPU:
    float32, int8, the faster, coarser int8-g128, or bf16 where the CPU multiplies bfloat16; on a
    GPU: fp8 or bf16."""
    prepare: bool = True
    """With precision="auto": whether the first load of a model on a machine measures the faster
    precisions, for some seconds, and another process goes on with it (docs/fidelity.md). Where
    float32 does not fit into memory the load waits for minutes, an hour at most. Also whether
    weights in 16 bits are copied as float32 where that is faster (docs/engines.md)."""
    prepare_seconds: float = 15.0
    """How long a load waits for that at most, where float32 fits into memory; 0: not at all. More
    is worth it for a program that embeds for long, as `embedlib index` and `embedlib serve` do
    (60): larger models are measured too."""
    gpu_memory_fraction: float = 0.9
    """Share of a GPU's memory that a model may take; those of a process's models add up."""
    threads: int | None = None
    """CPU cores to use; None: all cores that this process may run on, but no more than the
    processor time that its container allows."""
    engine_cache_dir: str | Path | None = None
    """Folder for engine directories; None: embedlib's folder in the user's cache."""

    max_batch_tokens: int | None = None
    """Token budget of a batch; None: the engine's measured best."""
    max_inflight_batches: int | None = None
    """Maximum bulk batches in flight; None: as many as keep the engine busy."""
    max_queued_texts: int = 8192
    """Maximum queued texts per lane; then bulk calls wait, and queries raise QueueFullError."""

    def __post_init__(self) -> None:
        """Check every field; values of numpy and torch become those of Python."""
        for item in fields(self):
            value = _KINDS[item.name].take(item.name, getattr(self, item.name))
            object.__setattr__(self, item.name, value)
        # The program may change its current folder while a model is loaded.
        for name in ("cache_folder", "engine_cache_dir"):
            if (folder := getattr(self, name)) is not None:
                object.__setattr__(self, name, absolute(folder))
        for name, prompt in (self.prompts or {}).items():
            if not isinstance(name, str):
                raise ConfigError(f"prompts has the name {shown(name)}; a name must be a str")
            UNICODE.take(f"prompts[{name!r}]", prompt)
        if self.examples is not None:
            object.__setattr__(self, "examples", check_examples(self.examples))

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError: `model.config` of other libraries says what the model is."""
            raise AttributeError(
                f"'Config' object has no attribute {name!r}; it holds options, spec says what the "
                "model is, and labels what a Reranker or Classifier returns"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Config:
        """Build a Config from keyword options; the error for an unknown name suggests a known one.

        Options of other libraries that are None or empty ask for nothing and are left out; so is
        backend="torch", the default there, with a line in the log.

        Raises:
            ConfigError: an option is unknown or out of range.
        """
        asked: dict[str, Any] = {
            name: value for name, value in options.items() if not asks_nothing(name, value)
        }
        for name in asked:
            if name in FOREIGN_OPTIONS:
                raise ConfigError(f"unknown option {name!r}; {FOREIGN_OPTIONS[name]}")
        check_names(cls, asked)
        return cls(**asked)

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
        """`threads`, or the number of cores that this process may keep busy."""
        return usable_cores() if self.threads is None else self.threads

    @property
    def engine_cache_path(self) -> Path:
        """`engine_cache_dir`, or embedlib's folder in the user's cache.

        Raises:
            what `user_cache` and `entered` raise.
        """
        if self.engine_cache_dir is not None:
            return entered(Path(self.engine_cache_dir))
        return entered(user_cache() / "embedlib")


def device_name(device: object) -> object:
    """Return the name of a device, also of a `torch.device`; anything else as it is."""
    torch = imported_torch()  # who has such an object has imported it
    if torch is not None and isinstance(device, torch.device):
        device = str(device)
    if not isinstance(device, str):
        return device
    name = device.strip()
    return "cpu" if name == "cpu:0" else name


def _devices(value: object) -> object:
    """Return the names of one device or several."""
    value = device_name(value)
    return tuple(map(device_name, value)) if is_sequence(value) else value


def _are_devices(value: object) -> bool:
    value = _devices(value)
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return False
    if len(names) == 1 and names[0] == "all":
        return True
    return bool(names) and all(
        isinstance(name, str) and re.fullmatch(r"cpu|cuda(:[0-9]+)?", name.strip())
        for name in names
    )


def check_examples(examples: Sequence[Any]) -> tuple[Mapping[str, str], ...]:
    """Check few-shot examples and return copies of them.

    Raises:
        ConfigError: an example is not a mapping of `instruct`, `query` and `response` to str.
    """
    for index, example in enumerate(examples):
        is_example = isinstance(example, Mapping) and set(example) == set(EXAMPLE_KEYS)
        if not is_example or not all(isinstance(value, str) for value in example.values()):
            raise ConfigError(
                f"examples[{index}] = {shown(example, 80)}; it must have the keys "
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
            raise ConfigError(f"unknown option {name!r}; {nearest(name, known)}")


def check_option(name: str, value: object, said: str) -> Any:
    """Return the value of one field, checked; messages call it `said`.

    Raises:
        ConfigError: the value is out of range.
    """
    return _KINDS[name].take(said, value)


def _plain(value: object) -> object:
    """Return the value of a member of an Enum, as sentence-transformers' SimilarityFunction."""
    return value.value if isinstance(value, Enum) else value


_SIMILARITY = choice(*get_args(Similarity))
_FOLDER = Kind(PATH.what, PATH.accepts, expanded)
_KINDS: Final[Mapping[str, Kind]] = {
    "revision": optional(TEXT),
    "token": Kind(
        "a str, True or False",
        lambda value: value is None or isinstance(value, str) or is_switch(value),
    ),
    "cache_folder": optional(_FOLDER),
    "local_files_only": SWITCH,
    "prompts": optional(
        # A dict: `Embedder.prompts` is a view, which cannot be pickled.
        Kind("a dict of prompts by name", lambda value: isinstance(value, Mapping), dict)
    ),
    "default_prompt_name": optional(TEXT),
    "examples": optional(Kind("a list of examples", is_sequence)),
    "template": optional(TEXT),
    "max_seq_tokens": optional(COUNT),
    "on_truncate": choice(*get_args(OnTruncate)),
    "truncate_dim": optional(COUNT),
    "max_active_dims": optional(COUNT),
    "quantization_ranges": optional(ARRAY_OR_FILE),
    "similarity_fn_name": optional(
        Kind(_SIMILARITY.what, lambda value: _SIMILARITY.accepts(_plain(value)), _plain)
    ),
    "engine": TEXT,
    "device": optional(Kind(ANY_DEVICES, _are_devices, _devices)),
    "precision": choice(*get_args(PrecisionName)),
    "prepare": SWITCH,
    "prepare_seconds": SECONDS,
    "gpu_memory_fraction": SHARE,
    "threads": optional(COUNT),
    "engine_cache_dir": optional(_FOLDER),
    "max_batch_tokens": optional(COUNT),
    "max_inflight_batches": optional(COUNT),
    "max_queued_texts": COUNT,
}
"""What each option takes."""

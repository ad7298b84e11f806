"""Profiles: how an engine runs models of one shape on this machine, measured by `embedlib tune`.

A profile is a file of the cache, `profiles/ENGINE-PRECISION-DIGEST.json`. DIGEST stands for the
shape and the machine, so machines may share a cache. What the profile is valid for stands in the
file as well, with the versions that were measured.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, Literal, TypeAlias, get_args

from embedlib.config import Config
from embedlib.errors import OTHER_CACHE, EngineBuildError, ModelUnsupportedError
from embedlib.models.new_file import new_file
from embedlib.models.reading.model_file import file_bytes, load_json

PROFILE_VERSION: Final = 1

Library = Literal["auto", "any", "onednn", "mlas"]
"""What multiplies matrices; auto: by CPU and model, see `engines.openvino.plans.layout`."""
Layout: TypeAlias = tuple[int, bool, Library]
"""Streams, whether the lanes share a compiled model, and the library."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How an engine computes; the vectors are the same up to rounding."""

    max_batch_tokens: int
    """Token budget of a batch."""
    num_streams: int
    """Bulk batches computed at the same time; they share the threads."""
    shares_lanes: bool
    """Whether both lanes use one compiled model."""
    library: Library
    is_tuned: bool = False
    """Whether it was measured; False: it comes from the engine's rule."""

    def __str__(self) -> str:
        """Return "tuned: 512 tokens, 2 streams, a model for each lane, auto"."""
        return f"{'tuned' if self.is_tuned else 'default'}: {self.settings}"

    @property
    def layout(self) -> Layout:
        """What a model is compiled for; profiles that differ only in their budget share it."""
        return self.num_streams, self.shares_lanes, self.library

    @property
    def settings(self) -> str:
        """What is behind the colon."""
        lanes = "one model for both lanes" if self.shares_lanes else "a model for each lane"
        streams = "1 stream" if self.num_streams == 1 else f"{self.num_streams} streams"
        return f"{self.max_batch_tokens} tokens, {streams}, {lanes}, {self.library}"


@dataclass(frozen=True, kw_only=True)
class ProfileKey:
    """What a profile is valid for; JSON values."""

    engine: str
    precision: str
    shape: Mapping[str, object]
    """Of the model."""
    machine: Mapping[str, object]
    """The CPU, and how many threads compute."""
    versions: Mapping[str, object]
    """Of embedlib and of the library that computes."""

    def path(self, config: Config) -> Path:
        """Return the file of the profile."""
        digest = _digest([self.shape, self.machine])[:32]
        name = f"{self.engine}-{self.precision}-{digest}.json"
        return config.engine_cache_path / "profiles" / name

    def facts(self) -> Mapping[str, Any]:
        """Return everything as a file of JSON has it."""
        facts: Mapping[str, Any] = json.loads(json.dumps(asdict(self)))
        return facts


def write_profile(
    key: ProfileKey, profile: Profile, measured: Mapping[str, object], config: Config
) -> Path:
    """Write a profile over an older one, and return its file.

    Args:
        key: what it is valid for.
        profile: what was found.
        measured: the figures, as JSON values; for people who read the file.
        config: says where the cache is.

    Raises:
        EngineBuildError: it cannot be written.
    """
    path = key.path(config)
    settings = asdict(profile)
    del settings["is_tuned"]
    content = {
        "profile_version": PROFILE_VERSION,
        "valid_for": key.facts(),
        "settings": settings,
        "measured": dict(measured),
    }
    content["digest"] = _digest(content)
    text = json.dumps(content, indent=2) + "\n"
    with _explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as part:
            part.write_text(text, encoding="utf-8")
    return path


def check_writable(key: ProfileKey, config: Config) -> None:
    """Raise EngineBuildError if a profile cannot be written: before minutes of measuring."""
    path = key.path(config)
    with _explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent):
            pass


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Say which file cannot be written."""
    try:
        yield
    except OSError as error:
        raise EngineBuildError(f"cannot write {path}: {error.strerror}; {OTHER_CACHE}") from error


def read_profile(key: ProfileKey, config: Config) -> Profile | None:
    """Return the profile that is valid for this; None if there is none.

    A file that is damaged, or of another machine or version, is ignored with a line in the log.
    """
    path = key.path(config)
    if file_bytes(path) is None:  # also in a folder of another user
        return None
    try:
        return _checked(load_json(path, path.parent), key)
    except (ModelUnsupportedError, ValueError, TypeError, KeyError) as error:
        logging.getLogger(__name__).warning(
            "the profile %s is ignored: %s; `embedlib tune` measures a new one", path, error
        )
        return None


def _checked(content: Mapping[str, Any], key: ProfileKey) -> Profile:
    """Return the profile of a file.

    Raises:
        KeyError, TypeError, ValueError: it is damaged, or not valid for this.
    """
    values = dict(content)
    version = values.get("profile_version")
    if version != PROFILE_VERSION:
        raise ValueError(f"profile_version = {version!r}, not {PROFILE_VERSION}")
    if values.pop("digest", None) != _digest(values):
        raise ValueError("it is damaged")
    expected = key.facts()
    for name, value in expected.items():
        if values["valid_for"].get(name) != value:
            raise ValueError(f"it is of another {name.removesuffix('s')}")
    profile = Profile(**values["settings"], is_tuned=True)
    counts = (profile.max_batch_tokens, profile.num_streams)
    is_valid = all(type(count) is int and count >= 1 for count in counts)
    if not is_valid or profile.library not in get_args(Library):
        raise ValueError(f"settings = {values['settings']}")
    return profile


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

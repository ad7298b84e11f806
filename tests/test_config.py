from __future__ import annotations

import os
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from embedlib.config import Config
from embedlib.errors import ConfigError

COUNTS = (
    "max_seq_tokens",
    "truncate_dim",
    "threads",
    "max_batch_tokens",
    "max_inflight_batches",
    "max_queued_texts",
)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_counts_are_whole_numbers_of_at_least_one(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = {value!r}; it must be a whole number"):
        Config(**{name: value})
    assert getattr(Config(**{name: 1}), name) == 1


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("on_truncate", "raise", "warn, error, ignore, chunk"),
        ("precision", "fp16", "auto, float32, bf16, fp8, int8"),
        ("similarity_fn_name", "cos", "cosine, dot, euclidean, manhattan"),
    ],
)
def test_choices_are_listed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = '{value}'; it must be one of {allowed}$"):
        Config(**{name: value})  # type: ignore[arg-type]


def test_the_name_of_an_engine_is_checked_where_it_is_loaded() -> None:
    assert Config(engine="of another package").engine == "of another package"
    with pytest.raises(ConfigError, match=r"^engine = None; it must be a str$"):
        Config(engine=None)  # type: ignore[arg-type]


def test_a_prompt_must_be_a_str() -> None:
    with pytest.raises(ConfigError, match=r"^prompts\['query'\] = 3; a prompt must be a str$"):
        Config(prompts={"query": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="prompts has the name 1; a name must be a str"):
        Config(prompts={1: "Q: "})  # type: ignore[dict-item]
    for prompts in (["Q: "], "Q: "):
        with pytest.raises(ConfigError, match="it must be a dict of prompts by name"):
            Config(prompts=prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "devices"),
    [
        (None, ()),
        ("cpu", ("cpu",)),
        ("all", ("all",)),
        ("cuda:0, cuda:12", ("cuda:0", "cuda:12")),
        (["cpu", "cpu"], ("cpu", "cpu")),
        (("cuda",), ("cuda",)),
    ],
)
def test_devices(device: Any, devices: tuple[str, ...]) -> None:
    assert Config(device=device).devices == devices


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "CPU", "", "cpu,", "all,cpu", ["all", "cpu"]])
def test_a_device_that_is_none(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device = .*; it must be cpu, cuda, cuda:N, several"):
        Config(device=device)


@pytest.mark.parametrize("device", [0, object()])
def test_a_device_of_another_kind(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device = .*; it must be cpu, cuda, cuda:N, several"):
        Config(device=device)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("revision", 5, "a str"),
        ("token", 5, "a str, True or False"),
        ("cache_folder", 5, "a path"),
        ("local_files_only", "false", "True or False"),
        ("template", 5, "a str"),
        ("engine_cache_dir", 5, "a path"),
    ],
)
def test_types(name: str, value: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = {value!r}; it must be {what}$"):
        Config(**{name: value})


def test_no_device_at_all() -> None:
    with pytest.raises(ConfigError, match=r"^device is empty; name one, or leave it out$"):
        Config(device=[])


@pytest.mark.parametrize("fraction", [0, 0.0, 1.1, -1, "0.5", True, float("nan")])
def test_a_share_of_memory(fraction: Any) -> None:
    with pytest.raises(ConfigError, match=r"^gpu_memory_fraction = .*; it must be a number above"):
        Config(gpu_memory_fraction=fraction)
    assert Config(gpu_memory_fraction=1).gpu_memory_fraction == 1


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="unknown option 'truncate_dims'; did you mean 'trunc"):
        Config.from_options({"truncate_dims": 3})
    with pytest.raises(ConfigError, match="unknown option 'zzz'; known: revision, token"):
        Config.from_options({"zzz": 3})
    with pytest.raises(ConfigError, match=r"unknown option 'use_auth_token'; pass token=$"):
        Config.from_options({"use_auth_token": True})
    assert Config.from_options({"threads": 3}) == Config(threads=3)


def test_a_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().threads = 2  # type: ignore[misc]


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Config(token="secret"))


def test_every_option_has_a_default() -> None:
    assert Config() == Config(
        **{item.name: getattr(Config(), item.name) for item in fields(Config)}
    )


def test_num_threads() -> None:
    assert Config(threads=3).num_threads == 3
    assert Config().num_threads == len(os.sched_getaffinity(0))


def test_num_threads_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert Config().num_threads == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert Config().num_threads == 1


def test_engine_cache_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config(engine_cache_dir=Path("/a")).engine_cache_path == Path("/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert Config().engine_cache_path == Path("/x/embedlib")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/h")
    assert Config().engine_cache_path == Path("/h/.cache/embedlib")

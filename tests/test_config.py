from __future__ import annotations

import ast
import copy
import inspect
import os
import pickle
from dataclasses import FrozenInstanceError, fields
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.signatures import LoadOptions
from embedlib.packages.foreign_options import FOREIGN_OPTIONS
from embedlib.session.signatures import ConfigOptions
from embedlib.system.cores import usable_cores
from tests.odd_values import ODD_VALUES

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
        ("precision", "fp16", "auto, float32, bf16, fp8, int8, int8-g128"),
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


def test_prompts_of_a_model_can_be_sent_to_another_process() -> None:
    config = Config(prompts=MappingProxyType({"query": "q: "}))
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_prompt_must_be_a_str() -> None:
    with pytest.raises(
        ConfigError, match=r"^prompts\['query'\] = 3; it must be a str without lone "
    ):
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
        ("cpu:0", ("cpu",)),  # as torch has it
        ("all", ("all",)),
        ("cuda:0, cuda:12", ("cuda:0", "cuda:12")),
        (["cpu", "cpu"], ("cpu", "cpu")),
        (("cuda",), ("cuda",)),
        ([" cpu", "cuda:1 "], ("cpu", "cuda:1")),
    ],
)
def test_devices(device: Any, devices: tuple[str, ...]) -> None:
    assert Config(device=device).devices == devices


@pytest.mark.parametrize(
    "device", ["gpu", "cuda:x", "CPU", "", "cpu,", "all,cpu", ["all", "cpu"], [], 0, object()]
)
def test_a_device_that_is_none(device: Any) -> None:
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


@pytest.mark.parametrize("name", [item.name for item in fields(Config)])
def test_every_option_refuses_values_of_another_type_in_one_line(name: str) -> None:
    messages = [message for value in ODD_VALUES if (message := refusal(name, value))]
    assert len(messages) > len(ODD_VALUES) / 2
    assert all(message.startswith(name) and "\n" not in message for message in messages)


def refusal(name: str, value: object) -> str:
    options: dict[str, Any] = {name: value}
    try:
        Config(**options)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("local_files_only", np.True_, True),
        ("threads", np.int32(2), 2),
        ("gpu_memory_fraction", np.float32(0.5), 0.5),
        ("token", False, False),
    ],
)
def test_numbers_of_numpy_become_those_of_python(name: str, value: Any, expected: Any) -> None:
    found = getattr(Config(**{name: value}), name)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("value", ["false", "True", 1, 0, np.int8(1), [True]])
def test_a_switch_is_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^local_files_only = .*; it must be True or False$"):
        Config(local_files_only=value)


def test_a_function_of_similarity_may_be_a_member_of_an_enum() -> None:
    class SimilarityFunction(Enum):  # as that of sentence-transformers
        DOT_PRODUCT = "dot"
        OTHER = "maxsim"

    options: dict[str, Any] = {"similarity_fn_name": SimilarityFunction.DOT_PRODUCT}
    assert Config(**options).similarity_fn_name == "dot"
    with pytest.raises(ConfigError, match="it must be one of cosine, dot, euclidean, manhattan"):
        Config(similarity_fn_name=SimilarityFunction.OTHER)  # type: ignore[arg-type]


def test_a_device_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert Config(device=torch.device("cpu")).devices == ("cpu",)
    assert Config(device=["cpu", torch.device("cuda", 1)]).devices == ("cpu", "cuda:1")
    with pytest.raises(ConfigError, match=r"^device = device\(type='mps'\); it must be cpu, cuda"):
        Config(device=torch.device("mps"))


@pytest.mark.parametrize("value", [None, {}])
@pytest.mark.parametrize("name", sorted(FOREIGN_OPTIONS))
def test_an_option_of_another_library_that_is_empty_asks_for_nothing(name: str, value: Any) -> None:
    assert Config.from_options({name: value}) == Config()


def test_torch_as_backend_is_told_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert Config.from_options({"backend": "torch"}) == Config()
    assert caplog.messages == [
        "backend='torch' is ignored: embedlib has engines of its own; leave it out, or pass engine="
    ]
    with pytest.raises(ConfigError, match=r"^unknown option 'backend'; leave it out: a CPU t"):
        Config.from_options({"backend": "onnx"})


def test_the_config_is_not_that_of_the_model() -> None:
    config: Any = Config(threads=2)
    said = "^'Config' object has no attribute 'id2label'; it holds options, spec says what the mod"
    with pytest.raises(AttributeError, match=said):
        config.id2label  # noqa: B018
    assert not hasattr(config, "hidden_size")
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("name", ["cache_folder", "engine_cache_dir"])
def test_a_folder_may_be_in_the_home_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    assert getattr(Config(**{name: "~/x"}), name) == "/h/x"
    for folder in ("~nobody-of-this-name/x", Path("~nobody-of-this-name/x")):
        with pytest.raises(
            ConfigError, match=r"~nobody.*: there is no such home folder; write ./~"
        ):
            Config(**{name: folder})


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
    # It shares letters with cache_folder, and nothing else.
    with pytest.raises(ConfigError, match="unknown option 'cache_size'; known: revision"):
        Config.from_options({"cache_size": "x"})
    with pytest.raises(ConfigError, match=r"unknown option 'use_auth_token'; pass token=$"):
        Config.from_options({"use_auth_token": True})
    with pytest.raises(ConfigError, match=r"'query_instruction'; pass prompts={'query': ...}$"):
        Config.from_options({"query_instruction": "x"})
    assert Config.from_options({"threads": 3}) == Config(threads=3)


def test_a_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().threads = 2  # type: ignore[misc]


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Config(token="secret"))


def test_ranges_are_neither_compared_nor_shown() -> None:
    first, second = (Config(quantization_ranges=np.zeros((2, 3))) for _ in range(2))
    assert first == second
    assert repr(first) == repr(Config())


def test_type_checkers_know_every_option() -> None:
    # As text: the types are those of both modules.
    expected = {item.name: item.type for item in fields(Config)}
    found = {name: kind.__forward_arg__ for name, kind in ConfigOptions.__annotations__.items()}
    assert found == expected
    assert docstrings(ConfigOptions) == docstrings(Config)


def test_type_checkers_know_every_option_of_a_load() -> None:
    expected = {item.name: item.type for item in fields(IndexOptions)}
    found = {name: kind.__forward_arg__ for name, kind in LoadOptions.__annotations__.items()}
    assert found == expected
    assert docstrings(LoadOptions) == docstrings(IndexOptions)


def docstrings(options: type[object]) -> dict[str, str]:
    """Each field with the string below it, which Python does not keep."""
    [tree] = ast.parse(inspect.getsource(options)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for item, below in pairwise(tree.body):
        if isinstance(item, ast.AnnAssign):
            assert isinstance(item.target, ast.Name)
            assert isinstance(below, ast.Expr), f"{item.target.id} has no docstring"
            found[item.target.id] = ast.unparse(below)
    return found


def test_num_threads() -> None:
    assert Config(threads=3).num_threads == 3
    assert Config().num_threads == usable_cores()


def test_engine_cache_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config(engine_cache_dir=Path("/a")).engine_cache_path == Path("/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert Config().engine_cache_path == Path("/x/embedlib")
    for ignored in ("", "relative"):  # as the specification has it
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        monkeypatch.setenv("HOME", "/h")
        assert Config().engine_cache_path == Path("/h/.cache/embedlib")


@pytest.mark.parametrize("name", ["cache_folder", "engine_cache_dir"])
def test_a_folder_stays_where_it_was_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    named: list[tuple[str | Path, str | Path]] = [
        ("x", str(tmp_path / "a/x")),
        (Path("../x"), tmp_path / "a/../x"),
        ("/x", "/x"),
    ]
    for folder, expected in named:
        assert getattr(Config(**{name: folder}), name) == expected
    (tmp_path / "a").rmdir()
    with pytest.raises(ConfigError, match="folder 'x': the current folder was deleted; give an "):
        Config(**{name: "x"})
    assert getattr(Config(**{name: "/x"}), name) == "/x"


@pytest.mark.parametrize("named", [None, Path("/b")])
def test_a_cache_that_may_not_be_entered(
    named: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(path: str, *args: Any, **options: Any) -> os.stat_result:
        if path == f"{folder}/.":
            raise PermissionError(13, "Permission denied", path)
        return real(path, *args, **options)

    folder = "/b" if named else "/x/embedlib"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setattr(os, "stat", stat)  # tests may run as root, who may enter everything
    with pytest.raises(ConfigError, match=rf"'{folder}' is in a folder that this user may not"):
        _ = Config(engine_cache_dir=named).engine_cache_path


def test_a_user_without_a_home_folder_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as for a user without an entry
    with pytest.raises(ConfigError, match=r"^no folder for the cache: .*EMBEDLIB_ENGINE_CACHE_DIR"):
        _ = Config().engine_cache_path

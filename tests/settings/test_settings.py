from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.session.arguments import one_config
from embedlib.settings.environment import (
    environment_options,
    mistyped_variables,
    read_environment,
)
from embedlib.settings.files import (
    find_project_file,
    read_project_file,
    read_user_file,
    user_file,
)
from embedlib.settings.layers import read_settings
from embedlib.settings.names import MODEL, NOT_OF_PROJECTS, SETTINGS

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's configuration folder, which is empty."""
    folder = tmp_path / "home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    (folder / "embedlib").mkdir(parents=True)
    return folder / "embedlib"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the root of a git repository with a folder `inner`."""
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "inner").mkdir()
    return tmp_path / "project"


def values(settings: object) -> dict[str, object]:
    assert isinstance(settings, dict)
    return {name: setting.value for name, setting in settings.items()}


def test_every_setting_but_the_model_is_a_field() -> None:
    assert {*SETTINGS} - {MODEL} <= {field.name for field in fields(Config)}


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("EMBEDLIB_MODEL", "a/b", "a/b"),
        ("EMBEDLIB_THREADS", "4", 4),
        ("EMBEDLIB_GPU_MEMORY_FRACTION", "0.5", 0.5),
        ("EMBEDLIB_PREPARE", " No ", False),
        ("EMBEDLIB_LOCAL_FILES_ONLY", "1", True),
        ("EMBEDLIB_TOKEN", "1", "1"),
        ("EMBEDLIB_DEVICE", "cuda:0,cuda:1", "cuda:0,cuda:1"),
        ("EMBEDLIB_ON_TRUNCATE", "error", "error"),
    ],
)
def test_a_variable_has_the_type_of_its_field(
    variable: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    [setting] = read_environment().values()
    assert setting.value == value
    assert type(setting.value) is type(value)
    assert setting.origin == variable


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("EMBEDLIB_THREADS", "x", "= 'x'; it must be a whole number of at least 1"),
        ("EMBEDLIB_THREADS", "0", "= 0; it must be a whole number of at least 1"),
        ("EMBEDLIB_THREADS", "9" * 5000, "it must be a whole number of at least 1"),
        ("EMBEDLIB_PRECISION", "8", "= '8'; it must be one of auto, float32"),
        ("EMBEDLIB_PREPARE", "maybe", "= 'maybe'; it must be True or False"),
        ("EMBEDLIB_GPU_MEMORY_FRACTION", "nan", "it must be a number above 0 and at most 1"),
        ("EMBEDLIB_GPU_MEMORY_FRACTION", "half", "= 'half'; it must be a number above 0 and"),
        ("EMBEDLIB_MODEL", " ", "it must be a folder, a hub name or package:NAME"),
    ],
)
def test_a_wrong_variable_is_named(
    variable: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError) as caught:
        read_environment()
    assert str(caught.value).startswith(variable)
    assert message in str(caught.value)


@pytest.mark.parametrize("words", ["1 true t yes y on", "0 false f no n off"])
def test_a_switch_takes_the_words_of_commands(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in words.split():
        monkeypatch.setenv("EMBEDLIB_PREPARE", word)
        assert read_environment()["prepare"].value is click.BOOL.convert(word, None, None)


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLIB_TOKEN", "hf_secret")
    assert "hf_secret" not in repr(read_environment())


def test_an_empty_variable_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLIB_THREADS", "")
    monkeypatch.setenv("EMBEDLIB_PORT", "tcp://x")
    assert read_environment() == {}


def test_only_variables_near_to_a_setting_look_mistyped(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("EMBEDLIB_THREDS", "EMBEDLIB_PORT", "EMBEDLIB_THREADS", "MY_EMBEDLIB_THREADS"):
        monkeypatch.setenv(variable, "")
    assert mistyped_variables() == {"EMBEDLIB_THREDS": "EMBEDLIB_THREADS"}


def test_python_takes_options_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLIB_THREADS", "3")
    monkeypatch.setenv("EMBEDLIB_TRUNCATE_DIM", "8")  # what a vector is, its program says
    monkeypatch.setenv("EMBEDLIB_MODEL", "a/b")
    assert one_config(None, {}) == Config(threads=3)
    assert one_config(None, {"threads": 5, "prepare": False}) == Config(threads=5, prepare=False)
    assert one_config(None, {"threads": None}) == Config()
    assert one_config(Config(), {}) == Config()
    monkeypatch.setenv("EMBEDLIB_THREADS", "x")
    assert environment_options(["threads"]) == {}
    with pytest.raises(ConfigError, match="EMBEDLIB_THREADS"):
        one_config(None, {})


def test_the_environment_is_above_the_project_above_the_user(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config.toml").write_text(
        'threads = 1\ndevice = "cpu"\ncache_folder = "hub"\nengine_cache_dir = "../made"\n'
    )
    (project / "embedlib.toml").write_text('threads = 2\nprecision = "bf16"\nmodel = "./m"\n')
    monkeypatch.setenv("EMBEDLIB_PRECISION", "int8")
    monkeypatch.chdir(project / "inner")
    found = read_settings()
    assert values(found) == {
        "threads": 2,
        "device": "cpu",
        "cache_folder": str(home / "hub"),  # counted from the file, not from the current folder
        "engine_cache_dir": str(home.parent / "made"),
        "precision": "int8",
        "model": str(project / "m"),
    }
    assert found["threads"].origin == str(project / "embedlib.toml")
    assert found["precision"].origin == "EMBEDLIB_PRECISION"
    assert found["device"].origin == str(user_file())


def test_a_project_ends_at_its_repository(project: Path) -> None:
    inner = project / "inner"
    (project / "embedlib.toml").write_text("threads = 2")
    assert find_project_file(inner) == project / "embedlib.toml"
    (project.parent / "embedlib.toml").write_text("threads = 3")
    (project / "embedlib.toml").unlink()
    assert find_project_file(inner) is None
    (project / ".git").rmdir()
    (project / "embedlib.toml").write_text("threads = 2")
    assert find_project_file(inner) is None  # no repository: only the folder itself
    assert find_project_file(project) == project / "embedlib.toml"


@pytest.mark.parametrize("planted", [".git", "embedlib.toml", "pyproject.toml"])
def test_what_others_put_into_a_shared_folder_does_not_count(
    planted: str, project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As /tmp/.git and /tmp/embedlib.toml, for whoever works below /tmp."""
    inner = project / "inner"
    settings = project / ("pyproject.toml" if planted == "pyproject.toml" else "embedlib.toml")
    table = "[tool.embedlib]\n" if planted == "pyproject.toml" else ""
    settings.write_text(f"{table}threads = 2")
    lstat, others, owners = os.lstat, project / planted, [4321]

    def owned(path: object) -> os.stat_result | SimpleNamespace:
        found = lstat(str(path))
        uid = owners[-1] if path == others else os.geteuid()
        return SimpleNamespace(st_uid=uid, st_mode=found.st_mode)

    monkeypatch.setattr(os, "lstat", owned)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert find_project_file(inner) == settings  # of another user, but not everybody may write
    project.chmod(0o1777)
    assert find_project_file(inner) is None
    told = f"{others} is not read: another user owns it, in a folder that all may write"
    assert caplog.messages == ([told] if planted == "embedlib.toml" else [])
    for owner in (1234, 0):  # one's own, and the administrator's
        owners.append(owner)
        assert find_project_file(inner) == settings


def test_pyproject_counts_if_it_has_the_table(project: Path) -> None:
    inner, file = project / "inner", project / "pyproject.toml"
    file.write_text('[project]\ndependencies = ["embedlib"]')
    assert find_project_file(inner) is None
    file.write_text("this is no TOML, and nobody's concern here")
    assert find_project_file(inner) is None
    file.write_text('tool = "embedlib"')
    assert find_project_file(inner) is None
    file.write_text("[tool]\nembedlib = 3")
    with pytest.raises(ConfigError, match=r"tool\.embedlib = 3; it must be a table"):
        find_project_file(inner)
    (project / "embedlib.toml").mkdir()
    file.write_text("[tool.embedlib]\nthreads = 2")
    assert values(read_project_file(file)) == {"threads": 2}
    assert find_project_file(inner) == file
    (project / "embedlib.toml").rmdir()  # a folder is no file of settings
    (project / "embedlib.toml").write_text("threads = 3")
    with pytest.raises(ConfigError, match="keep one of them"):
        find_project_file(inner)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("thread = 1", "unknown key 'thread'; did you mean 'threads'?"),
        ("max-batch-tokens = 1", "did you mean 'max_batch_tokens'?"),
        ("[encode]\nthreads = 1", "unknown key 'encode'; known: model, token"),
        ('revision = "a"', "it belongs to one model"),
        ("prompts = {query = 'q'}", "it is an option of Python programs"),
        ("threads = true", "threads = True; it must be a whole number of at least 1"),
        ("threads = 2.5", "threads = 2.5; it must be"),
        ('prepare = "no"', "prepare = 'no'; it must be True or False"),
        ('device = ["gpu"]', "it must be cpu, cuda, cuda:N"),
        ("model = 1", "model = 1; it must be a folder"),
        ('token = "hf_secret"', "token is a secret and not taken from a file; set EMBEDLIB_TOKEN"),
        ("threads", "is not valid TOML"),
        ("\xff", "is not valid TOML"),
        (f"a = {'[' * 100_000}", "is not valid TOML"),
        ("#" * 2_000_000, "has more than 1,048,576 bytes"),
    ],
)
@pytest.mark.parametrize("read", [read_project_file, read_user_file])
def test_what_a_file_must_not_have(
    read: object, content: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "embedlib.toml"
    file.write_text(content, encoding="latin-1")
    assert callable(read)
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)
    assert "hf_secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^cannot read {tmp_path}: Is a directory$"):
        read_project_file(tmp_path)


@pytest.mark.parametrize("name", NOT_OF_PROJECTS)
def test_a_project_chooses_no_folders_and_opens_no_connections(name: str, tmp_path: Path) -> None:
    file = tmp_path / "embedlib.toml"
    value = "false" if name == "local_files_only" else '"here"'
    file.write_text(f"{name} = {value}")
    assert [*read_user_file(file)] == [name]
    with pytest.raises(ConfigError, match="which may be somebody else's; set EMBEDLIB_"):
        read_project_file(file)


def test_without_a_home_folder_the_current_one_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as for a user without an entry
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~/.config/embedlib").mkdir(parents=True)
    (tmp_path / "~/.config/embedlib/config.toml").write_text("threads = 1")
    assert user_file().is_file()
    assert read_user_file(user_file()) == {}


def test_a_deleted_current_folder_has_no_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert read_settings() == {}
    monkeypatch.chdir(tmp_path)


def test_folders_that_may_not_be_searched_have_no_file(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.chdir(project)
    monkeypatch.setattr("os.stat", stat)  # root, as whom tests may run, searches every folder
    assert read_settings() == {}


def test_a_file_that_windows_has_saved(tmp_path: Path) -> None:
    path = tmp_path / "embedlib.toml"
    path.write_bytes("\ufeffthreads = 4\n".encode())
    assert read_project_file(path)["threads"].value == 4

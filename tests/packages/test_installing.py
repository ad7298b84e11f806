"""The line that installs an extra names the place where this embedlib came from."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from embedlib.errors import ModelNotFoundError
from embedlib.models.hub import resolve
from embedlib.packages import installing
from embedlib.packages.installing import install_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]

CAME_FROM = "."
"""What every page and example installs: a checkout. At a release this becomes "embedlib"; the test
then lists each line to change."""


class Installed:
    """A distribution with a direct_url.json, or without one; it has no other files."""

    files = None

    def __init__(self, origin: object, made_by: str = "pip\n") -> None:
        url = None if origin is None else json.dumps(origin)
        self.texts = {"direct_url.json": url, "INSTALLER": made_by}

    def read_text(self, name: str) -> str | None:
        return self.texts[name]


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'embedlib[a,b]'"),
        ({"url": "file:///src/em%20bed", "dir_info": {}}, "pip install '/src/em bed[a,b]'"),
        (
            {"url": "file:///src", "dir_info": {"editable": True}},
            "pip install -e '/src[a,b]'",
        ),
        (
            {"url": "file:///x/embedlib-1-py3-none-any.whl", "archive_info": {}},
            "pip install '/x/embedlib-1-py3-none-any.whl[a,b]'",
        ),
        (
            {"url": "https://host/e-1.whl", "archive_info": {}},
            "pip install 'embedlib[a,b] @ https://host/e-1.whl'",
        ),
        (
            {"url": "file:///repo", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'embedlib[a,b] @ git+file:///repo@abc'",
        ),
    ],
)
def test_it_names_where_this_embedlib_came_from(
    origin: object, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin))
    assert install_line("a,b") == line


def test_a_checkout_that_was_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may not have embedlib, and anybody may upload another package of this name."""

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_line("qdrant") == f"pip install '{ROOT.resolve()}[qdrant]'"
    copied = tmp_path / "embedlib" / "packages" / "installing.py"
    monkeypatch.setattr(installing, "__file__", str(copied))
    assert install_line("qdrant") == "pip install 'embedlib[qdrant]'"  # a copy without its origin


def test_an_environment_of_uv_or_pipx_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In neither need there be a pip, and another one installs where this embedlib is not."""
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(None, "uv"))
    monkeypatch.setattr(sys, "executable", "/home/me/my tools/bin/python")
    uv = "uv pip install --python '/home/me/my tools/bin/python'"
    assert install_line("qdrant") == f"{uv} 'embedlib[qdrant]'"
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("package:not-installed")
    assert f"install it ({uv} --no-deps not-installed)" in str(caught.value)

    environment = tmp_path / "embedlib"
    environment.mkdir()
    (environment / "pipx_metadata.json").touch()
    monkeypatch.setattr(sys, "prefix", str(environment))
    assert install_line("qdrant") == "pipx runpip embedlib install 'embedlib[qdrant]'"


def pages() -> list[Path]:
    folders = [ROOT / "docs", ROOT / "examples"]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    texts = [path for path in found if path.suffix in (".md", ".py", ".sh")]
    return [ROOT / "README.md", *(path for path in texts if path.name != "changelog.md")]


def test_every_page_installs_embedlib_from_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {*project["optional-dependencies"]}
    wrong = []
    for path in pages():
        for line in path.read_text(encoding="utf-8").splitlines():
            for told in re.findall(r"pip install ([^#`|;&]*)", line):
                for place, extras in re.findall(r"(?<![\w-])(embedlib|\.)(?:\[([\w,-]+)\])", told):
                    if place != CAME_FROM or not {*extras.split(",")} <= known:
                        wrong.append(f"{path.relative_to(ROOT)}: {line.strip()}")
    assert wrong == []

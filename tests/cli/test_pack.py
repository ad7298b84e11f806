from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from embedlib.config import Config
from embedlib.models.reading.pack_file import open_pack

Run = Callable[..., Result]


def test_a_pack_is_written_and_shown(
    run: Run, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    pack = tmp_path / "model.embedlib"
    cache = ("--engine-cache-dir", tmp_path / "cache")
    done = run("pack", tiny_folder("bert"), "-o", pack, *cache)
    assert done.exit_code == 0, done.output
    digest = open_pack(pack).index_digest
    assert f"digest         {digest}\n" in done.stdout
    shown = run("inspect", pack)
    assert f"digest         {digest}\n" in shown.stdout
    assert "packed by      embedlib " in shown.stdout
    again = run("pack", pack, "-o", tmp_path / "again.embedlib", "--json", *cache)
    assert json.loads(again.stdout)["digest"] == digest
    assert json.loads(run("inspect", pack, "--json").stdout)["pack_digest"] == digest


def test_it_tells_what_was_packed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_content(files: object, manifest: object, config: Config) -> SimpleNamespace:
        assert (files, manifest) == (("files", True), "manifest")
        assert config.template == "qwen3-reranker"
        return content

    def pack_model(files: object, found: object, out: Path, report: Any) -> str:
        assert found is content
        report(1, 2)
        out.write_bytes(bytes(2_500_000))
        return "f00d"

    content = SimpleNamespace(
        paths=["a", "b", "c"], compiled=[SimpleNamespace(precision="int8")], num_reports=2
    )
    opened = SimpleNamespace(
        name="org/model",
        revision="abc",
        manifest="manifest",
        has_head=True,
        read_files=lambda *, with_head: ("files", with_head),
    )
    monkeypatch.setattr("embedlib.models.packing.write.find_content", find_content)
    monkeypatch.setattr("embedlib.models.packing.write.pack_model", pack_model)
    monkeypatch.setattr("embedlib.models.opening.OpenedModel.find", lambda *_: opened)
    monkeypatch.chdir(tmp_path)
    command = ("pack", "org/model", "-o", "m.embedlib", "--template", "qwen3-reranker")
    assert [line.split(maxsplit=1) for line in run(*command).stdout.splitlines()] == [
        ["pack", "m.embedlib"],
        ["model", "org/model"],
        ["revision", "abc"],
        ["size", "2.5 MB, 3 files"],
        ["compiled", "int8"],
        ["measured", "2 reports"],
        ["digest", "f00d"],
    ]
    assert json.loads(run(*command, "--json").stdout) == {
        "pack": "m.embedlib",
        "model": "org/model",
        "revision": "abc",
        "bytes": 2_500_000,
        "files": 3,
        "compiled": ["int8"],
        "reports": 2,
        "digest": "f00d",
    }


def test_mistakes_are_named(run: Run, tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    done = run("pack", tiny_folder("bert"), "-o", tmp_path / "model.zip")
    assert done.exit_code == 2
    assert "the name of a pack ends with .embedlib" in done.stderr
    nowhere = run("pack", tiny_folder("bert"), "-o", tmp_path / "nowhere" / "model.embedlib")
    assert nowhere.exit_code == 1
    assert f"there is no folder '{tmp_path}/nowhere'; make it" in nowhere.stderr
    assert not (tmp_path / "nowhere").exists()
    pack = tmp_path / "model.embedlib"
    run("pack", tiny_folder("bert"), "-o", pack)
    pack.write_bytes(pack.read_bytes()[:-30])
    cut = run("encode", pack, "-", stdin="a")
    assert cut.exit_code == 1
    assert cut.stderr.count("\n") == 1
    assert "is damaged (File is not a zip file: it was cut off or changed)" in cut.stderr


def test_beside_a_model_that_is_set_a_pack_is_the_model(
    run: Run, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, texts = tmp_path / "model.embedlib", tmp_path / "texts.txt"
    run("pack", tiny_folder("bert"), "-o", pack)
    texts.write_text("a\n")
    monkeypatch.setenv("EMBEDLIB_MODEL", str(tmp_path / "nowhere"))
    done = run("encode", pack, texts, "--format", "jsonl")
    assert done.exit_code == 0, done.output


def test_a_destination_finds_its_pack_from_another_folder(
    run: Run, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("a text\n")
    to = f"jsonl:{tmp_path / 'out.jsonl'}"
    monkeypatch.chdir(tmp_path)
    run("pack", tiny_folder("bert"), "-o", "model.embedlib")
    assert run("index", "a.txt", "-m", "model.embedlib", "--to", to).exit_code == 0
    monkeypatch.chdir("below")
    done = run("search", "a text", "--to", to)
    assert done.exit_code == 0, done.output

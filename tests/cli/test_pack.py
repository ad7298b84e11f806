from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

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

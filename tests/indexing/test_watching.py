"""Folders that are watched: each pass loads what has changed, and no change is lost."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, SourceError
from embedlib.indexing import IndexReport, SourceOptions, index
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.watching import changed_sources, check_watch, folder_changes
from embedlib.packages.installing import install_line
from embedlib.testing import FakeEngine, FakeSink, FakeStore, fake_embedder

Step = Callable[[], Collection[str]]


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with fake_embedder(FakeEngine(max_batch_tokens=256)) as made:
        yield made


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "sub/c.md"):
        (folder / name).write_text(f"text of {name}")
    return folder


class Loads:
    """Runs the passes; a step changes files and returns the paths that are reported."""

    def __init__(self, embedder: Embedder, **options: Any) -> None:
        self.store = FakeStore()
        self.told: list[str] = []
        self.embedder = embedder
        self.options = options

    def run(
        self, *steps: Step, how: SourceOptions | None = None, first: Step = lambda: ()
    ) -> list[IndexReport]:
        changes = (step() for step in (first, *steps))
        sources = changed_sources(
            ["docs"],
            how or SourceOptions(),
            self.told.append,
            changes,
            reads_all=self.options.get("delete_missing", False),
        )
        return [
            index(
                source,
                FakeSink(self.store),
                embedder=self.embedder,
                tell=self.told.append,
                **{"chunk": False, **self.options},
            )
            for source in sources
        ]

    def texts(self) -> dict[str, str]:
        return {row.source_id: row.text for row in self.store.rows.values()}


@pytest.fixture
def loads(embedder: Embedder) -> Loads:
    return Loads(embedder)


def write(path: Path, text: str) -> Step:
    def step() -> Collection[str]:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return {str(path)}

    return step


def remove(path: Path) -> Step:
    def step() -> Collection[str]:
        path.unlink()
        return {str(path)}

    return step


def test_a_pass_reads_only_what_has_changed(docs: Path, loads: Loads) -> None:
    reports = loads.run(write(docs / "a.txt", "another"), lambda: (), write(docs / "d.txt", "new"))
    assert [report.num_documents for report in reports] == [3, 1, 1]
    assert [report.num_embedded for report in reports] == [3, 1, 1]
    assert [report.num_other for report in reports] == [0, None, None]
    assert loads.texts() == {
        "docs/a.txt": "another",
        "docs/b.txt": "text of b.txt",
        "docs/d.txt": "new",
        "docs/sub/c.md": "text of sub/c.md",
    }


def test_the_first_pass_begins_after_changes_are_reported(docs: Path, loads: Loads) -> None:
    assert loads.run(first=write(docs / "d.txt", "new"))[0].num_documents == 4


def test_what_changes_during_a_pass_is_in_the_next_one(docs: Path, loads: Loads) -> None:
    def during(_: Any) -> None:
        (docs / "a.txt").write_text("written while the first pass ran")

    loads.options["on_progress"] = during
    reports = loads.run(lambda: {str(docs / "a.txt")})
    assert len(reports) == 2
    assert loads.texts()["docs/a.txt"] == "written while the first pass ran"


def test_nothing_is_looked_for_while_no_change_is_reported(docs: Path, loads: Loads) -> None:
    def step() -> Collection[str]:
        (docs / "b.txt").write_text("its change is not reported yet")
        return ()

    assert len(loads.run(step)) == 1


def test_files_in_a_new_folder_are_read(docs: Path, loads: Loads) -> None:
    def step() -> Collection[str]:
        (docs / "new" / "inner").mkdir(parents=True)
        (docs / "new" / "inner" / "e.txt").write_text("inside")
        return {str(docs / "new")}  # the files came before the system watched their folder

    assert loads.run(step)[1].num_embedded == 1
    assert loads.texts()["docs/new/inner/e.txt"] == "inside"


@pytest.mark.parametrize("name", [".hidden.txt", "photo.png", "sub/.git/x.txt"])
def test_files_that_are_not_read_cause_no_pass(docs: Path, loads: Loads, name: str) -> None:
    assert len(loads.run(write(docs / name, "text"))) == 1


def test_a_destination_in_the_folder_causes_no_pass(docs: Path, loads: Loads) -> None:
    rows = docs / "out.jsonl.embedlib" / "rows.txt"
    assert len(loads.run(write(rows, "text"))) == 1


def test_a_link_to_the_folder_is_the_folder(docs: Path, loads: Loads, tmp_path: Path) -> None:
    docs.rename(tmp_path / "real")
    os.symlink("real", tmp_path / "docs")
    reports = loads.run(write(tmp_path / "real" / "a.txt", "another"))
    assert [report.num_embedded for report in reports] == [3, 1]


def test_what_is_reported_is_read_though_it_looks_as_before(
    docs: Path, loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlib.indexing.watching._stamp", lambda path: (1,))
    real = docs.rename(tmp_path / "real")
    docs.symlink_to("real")
    places = [real / "a.txt", real / "sub", real, real / "su", tmp_path / "b.txt"]
    reports = loads.run(*(lambda path=place: {str(path)} for place in places))
    assert [report.num_documents for report in reports] == [3, 1, 1, 3]


def test_removed_files_stay_unless_they_are_to_be_deleted(docs: Path, loads: Loads) -> None:
    assert len(loads.run(remove(docs / "a.txt"))) == 1
    assert "docs/a.txt" in loads.texts()


def test_removed_files_are_deleted_by_a_pass_over_everything(
    docs: Path, embedder: Embedder
) -> None:
    loads = Loads(embedder, delete_missing=True, max_delete=0.5)
    image = write(docs / "x.png", "")
    reports = loads.run(remove(docs / "a.txt"), image, write(docs / "b.txt", "another"))
    assert [report.num_deleted for report in reports] == [0, 1, 0]
    assert [report.num_documents for report in reports] == [3, 2, 2]
    assert loads.texts() == {"docs/b.txt": "another", "docs/sub/c.md": "text of sub/c.md"}


def test_surplus_chunks_are_deleted_by_a_partial_pass(docs: Path, embedder: Embedder) -> None:
    (docs / "a.txt").write_text("many words " * 40)
    loads = Loads(embedder, chunk=True, chunk_tokens=32)
    reports = loads.run(write(docs / "a.txt", "few"))
    assert reports[1].num_deleted > 0
    assert loads.texts()["docs/a.txt"] == "few"
    assert len(loads.store.rows) == 3


def test_after_many_changes_everything_is_read(docs: Path, loads: Loads) -> None:
    def step() -> Collection[str]:
        (docs / "b.txt").write_text("its change was lost")
        return {f"/else/{n}" for n in range(1001)}

    assert loads.run(step)[1].num_documents == 3
    assert loads.texts()["docs/b.txt"] == "its change was lost"


def test_a_bad_file_is_told_and_its_correction_is_loaded(docs: Path, loads: Loads) -> None:
    def step() -> Collection[str]:
        (docs / "a.txt").write_bytes(b"\xff")
        return {str(docs / "a.txt")}

    reports = loads.run(step, write(docs / "a.txt", "corrected"))
    assert [report.num_bad for report in reports] == [0, 1, 0]
    assert loads.texts()["docs/a.txt"] == "corrected"


def test_an_errors_file_keeps_what_a_pass_does_not_read(
    docs: Path, embedder: Embedder, tmp_path: Path
) -> None:
    (docs / "b.txt").write_bytes(b"\xff")
    errors = tmp_path / "errors.jsonl"
    loads = Loads(embedder, errors_file=str(errors))
    loads.run(write(docs / "a.txt", "another"))
    [bad] = map(json.loads, errors.read_text().splitlines())
    assert bad["place"] == "'docs/b.txt'"
    loads.run()  # reads everything
    assert len(errors.read_text().splitlines()) == 1


def test_a_partial_pass_keeps_the_names_of_the_destination(docs: Path, loads: Loads) -> None:
    how = SourceOptions(id_root=docs.parent.parent)
    prefix = docs.parent.name
    loads.run(how=how)
    assert f"{prefix}/docs/a.txt" in loads.texts()
    os.rename(docs / "sub" / "c.md", docs / "c.md")
    reports = loads.run(write(docs / "a.txt", "another"), how=how)
    assert reports[1].num_documents == 1
    assert loads.texts()[f"{prefix}/docs/a.txt"] == "another"


def test_files_that_links_lead_to_are_followed(docs: Path, loads: Loads, tmp_path: Path) -> None:
    """A link inside of the folder, one to elsewhere, and a folder of which a link chooses one."""
    (docs / "inner.txt").symlink_to("a.txt")
    (tmp_path / "else.txt").write_text("before")
    (docs / "outer.txt").symlink_to(tmp_path / "else.txt")
    for version in ("..1", "..2"):
        (docs / version).mkdir()
        (docs / version / "m.txt").write_text(f"version {version}")
    (docs / "..data").symlink_to("..1")
    (docs / "m.txt").symlink_to("..data/m.txt")

    def switch() -> Collection[str]:
        (tmp_path / "else.txt").write_text("after!")  # of the same size; not reported, but seen
        (docs / "..new").symlink_to("..2")
        (docs / "..new").rename(docs / "..data")
        return {str(docs / "..data")}

    reports = loads.run(write(docs / "a.txt", "another"), switch)
    assert [report.num_documents for report in reports] == [6, 2, 2]
    assert loads.texts() == {
        "docs/a.txt": "another",
        "docs/b.txt": "text of b.txt",
        "docs/inner.txt": "another",
        "docs/m.txt": "version ..2",
        "docs/outer.txt": "after!",
        "docs/sub/c.md": "text of sub/c.md",
    }


def test_a_link_to_nothing_is_a_bad_row_until_it_leads_to_a_file(docs: Path, loads: Loads) -> None:
    (docs / "d.txt").symlink_to("../d.txt")
    reports = loads.run(write(docs / "a.txt", "1"), write(docs.parent / "d.txt", "there"))
    assert [report.num_bad for report in reports] == [1, 0, 0]
    assert loads.texts()["docs/d.txt"] == "there"


def test_of_ids_in_two_files_the_first_counts_in_each_pass(docs: Path, loads: Loads) -> None:
    tables = SourceOptions(input_format="jsonl")
    for name in ("a", "b"):
        (docs / f"{name}.jsonl").write_text(f'{{"id": 1, "text": "{name}"}}\n')
    step = write(docs / "b.jsonl", '{"id": 1, "text": "b again"}\n{"id": 2, "text": "second"}\n')
    reports = loads.run(step, how=tables)
    assert [report.num_bad for report in reports] == [1, 1]
    assert loads.texts() == {"1": "a", "2": "second"}


def test_a_new_table_takes_no_id_of_another(docs: Path, loads: Loads) -> None:
    (docs / "a.jsonl").write_text('{"id": 1, "text": "a"}\n')
    step = write(docs / "b.jsonl", '{"id": 1, "text": "b"}\n')
    reports = loads.run(step, how=SourceOptions(input_format="jsonl"))
    assert [report.num_bad for report in reports] == [0, 1]
    assert loads.texts() == {"1": "a"}


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_an_id_of_a_table_that_is_gone_is_that_of_the_next(
    docs: Path, loads: Loads, how: str
) -> None:
    for name in ("a", "b"):
        (docs / f"{name}.jsonl").write_text(f'{{"id": 1, "text": "{name}"}}\n')
    first = docs / "a.jsonl"
    step = remove(first) if how == "removed" else write(first, "")
    reports = loads.run(step, how=SourceOptions(input_format="jsonl"))
    assert [report.num_bad for report in reports] == [1, 0]
    assert loads.texts() == {"1": "b"}


def test_an_id_of_a_table_that_is_half_written_stays_its_own(docs: Path, loads: Loads) -> None:
    for name in ("a", "b"):
        (docs / f"{name}.jsonl").write_text(f'{{"id": 1, "text": "{name}"}}\n')
    step = write(docs / "a.jsonl", '{"id": 1, "te')
    loads.run(step, how=SourceOptions(input_format="jsonl"))
    assert loads.texts() == {"1": "a"}


@pytest.mark.parametrize(
    "how",
    [
        SourceOptions(input_format="lines"),
        SourceOptions(input_format="jsonl", id_prefix="file"),
        SourceOptions(glob=("*.txt", "*.jsonl")),
    ],
)
def test_files_whose_rows_have_no_ids_of_their_own_are_read_alone(
    docs: Path, loads: Loads, how: SourceOptions
) -> None:
    for name in ("a.jsonl", "b.jsonl", "a.txt"):
        (docs / name).write_text('{"id": 1, "text": "a"}\n')
    name = "b.jsonl" if how.id_prefix else "a.txt"
    reports = loads.run(write(docs / name, '{"id": 1, "text": "again"}\n'), how=how)
    assert reports[1].num_documents == 1


def test_a_table_that_is_being_written_is_a_bad_row_until_it_is_there(
    docs: Path, loads: Loads
) -> None:
    (docs / "a.jsonl").write_text('{"id": 1, "text": "one"}\n')
    tables = SourceOptions(input_format="jsonl")
    half = write(docs / "b.jsonl", '{"id": 2, "te')
    no_text = write(docs / "b.jsonl", '{"id": 2}\n')
    whole = write(docs / "b.jsonl", '{"id": 2, "text": "two"}\n')
    reports = loads.run(half, no_text, write(docs / "c.txt", ""), whole, how=tables)
    assert [report.num_bad for report in reports] == [0, 1, 1, 0]
    assert loads.texts() == {"1": "one", "2": "two"}
    refused = "skipped: the rest of 'docs/b.jsonl': none of the first 1 rows"
    assert any(line.startswith(refused) for line in loads.told), loads.told


def test_a_table_without_a_text_is_an_error_at_the_start(docs: Path, loads: Loads) -> None:
    (docs / "a.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(SourceError, match=r"^docs/a\.jsonl: no field has the name of a text"):
        loads.run(how=SourceOptions(input_format="jsonl"))


def test_a_file_that_is_half_written_deletes_nothing(docs: Path, embedder: Embedder) -> None:
    loads = Loads(embedder, delete_missing=True, max_delete=1.0)
    tables = SourceOptions(input_format="jsonl")
    (docs / "a.jsonl").write_text('{"id": 1, "text": "one"}\n')
    (docs / "b.jsonl").write_text('{"id": 2, "text": "two"}\n')
    loads.run(write(docs / "b.jsonl", '{"id": 2, "te'), how=tables)
    assert loads.texts() == {"1": "one", "2": "two"}


def test_lines_for_the_user_come_once(docs: Path, loads: Loads) -> None:
    (docs / "x.png").write_bytes(b"")
    loads.run(write(docs / "a.txt", "1"), write(docs / "a.txt", "2"))
    assert sum("was skipped: .png" in line for line in loads.told) == 1


@pytest.mark.parametrize(
    ("paths", "options", "reason"),
    [
        (["docs/a.txt"], {}, "watch needs folders, and 'docs/a.txt' is none"),
        ([], {}, "'-' is none"),
        (["docs"], {"recreate": True}, "watch and recreate exclude one another"),
        (["docs"], {"replace": True}, "watch and replace exclude one another"),
        (["docs"], {"dry_run": True}, "watch and dry_run exclude"),
        (["docs"], {"limit": 1}, "watch and limit exclude"),
        (["docs"], {"errors_file": "docs/e.jsonl"}, "lies in the folder 'docs', which would read"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    docs: Path, paths: list[str], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_watch(paths, IndexOptions(**options), SourceOptions(input_format="jsonl"))


def test_a_link_leads_errors_into_the_folder(docs: Path) -> None:
    (docs.parent / "link").symlink_to("docs")
    options = IndexOptions(errors_file="link/e.jsonl")
    with pytest.raises(ConfigError, match=r"errors_file 'link/e\.jsonl' lies in the folder 'docs'"):
        check_watch(["docs"], options, SourceOptions(input_format="jsonl"))


@pytest.mark.parametrize("name", ["docs/e.errors", "docs/.e.jsonl", "e.jsonl"])
def test_errors_go_where_no_pass_reads_them(docs: Path, name: str) -> None:
    options = IndexOptions(errors_file=name)
    check_watch(["docs"], options, SourceOptions(input_format="jsonl"))


def test_an_empty_folder_is_waited_for(docs: Path, embedder: Embedder) -> None:
    loads = Loads(embedder, delete_missing=True, max_delete=0.6)
    files = sorted(path for path in docs.rglob("*") if path.is_file())

    def empty() -> Collection[str]:
        for path in files:
            path.unlink()
        return [str(path) for path in files]

    def fill() -> Collection[str]:
        (docs / "b.txt").write_text("text of b.txt")
        (docs / "new.txt").write_text("new")
        return [str(docs / "new.txt")]

    reports = loads.run(empty, fill)
    assert [report.num_embedded for report in reports] == [3, 1]
    assert reports[-1].num_deleted == 2
    assert any("has no text or Markdown file; waiting until" in line for line in loads.told)


def test_a_missing_package_is_named(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(SourceError) as caught:
        next(folder_changes(["docs"]))
    assert install_line("watch") in str(caught.value)


def test_the_system_reports_changes(docs: Path) -> None:
    pytest.importorskip("watchfiles", reason="the extra watch is not installed")
    changes = folder_changes(["docs"])
    assert next(changes) == frozenset()  # it watches from now on
    (docs / "sub" / "new.txt").write_text("new")
    assert str(docs.resolve() / "sub" / "new.txt") in next(filter(None, changes))
    (docs / "new").mkdir()
    assert str(docs.resolve() / "new") in next(filter(None, changes))
    (docs / "a.txt").write_text("later")
    assert "/" not in next(filter(None, changes))  # a new folder is watched with the others
    changes.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["moved", "removed", "link"])
def test_a_folder_that_is_replaced_is_watched_anew(docs: Path, how: str) -> None:
    pytest.importorskip("watchfiles", reason="the extra watch is not installed")
    new = docs.parent / "new"
    new.mkdir()
    if how == "link":
        docs.rename(docs.parent / "old")
        docs.symlink_to("old")
    changes = folder_changes(["docs"])
    assert next(changes) == frozenset()
    if how == "link":
        (docs.parent / "link").symlink_to("new")
        (docs.parent / "link").rename(docs)
    else:
        if how == "moved":
            docs.rename(docs.parent / "old")
        else:
            shutil.rmtree(docs)
        new.rename(docs)
    while "/" not in next(changes):  # anything may have changed
        pass
    (docs / "a.txt").write_text("later")
    while str(docs.resolve() / "a.txt") not in (found := next(changes)):
        pass
    assert "/" not in found  # all has been read since
    changes.close()  # type: ignore[attr-defined]


def test_a_folder_that_is_gone_is_waited_for(docs: Path, loads: Loads) -> None:
    def remove_folder() -> Collection[str]:
        shutil.rmtree(docs)
        return {str(docs)}

    reports = loads.run(remove_folder, write(docs / "a.txt", "back"))
    assert [report.num_documents for report in reports] == [3, 1]
    assert loads.texts()["docs/a.txt"] == "back"
    assert any("docs: the folder is gone; waiting" in line for line in loads.told)


def test_after_a_folder_was_gone_everything_is_read(docs: Path, loads: Loads) -> None:
    def remove_folder() -> Collection[str]:
        docs.rename(docs.parent / "away")
        return {str(docs)}

    def bring_back() -> Collection[str]:
        (docs.parent / "away").rename(docs)
        return {str(docs.parent / "away")}

    assert [report.num_documents for report in loads.run(remove_folder, bring_back)] == [3, 3]


def test_a_folder_that_cannot_be_watched_is_an_error(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchfiles = pytest.importorskip("watchfiles", reason="the extra watch is not installed")
    with pytest.raises(SourceError, match="cannot watch 'absent': "):
        next(folder_changes(["absent"]))

    def refuse(*_: object, **__: object) -> Iterator[None]:
        raise OSError("OS file watch limit reached.")
        yield

    monkeypatch.setattr(watchfiles, "watch", refuse)
    with pytest.raises(SourceError, match=r"cannot watch 'docs': .* reached\.; on Linux .* sysctl"):
        next(folder_changes(["docs"]))

    def name(*_: object, **__: object) -> Iterator[None]:
        "docs/caf\udce9".encode()
        yield

    monkeypatch.setattr(watchfiles, "watch", name)
    with pytest.raises(SourceError, match=r"'docs/caf\\udce9'; .* rename it$"):
        next(folder_changes(["docs"]))


@pytest.mark.parametrize("name", [b"docs", b"docs/caf\xe9"])
def test_a_name_that_is_not_utf8_is_told_as_such(docs: Path, name: bytes) -> None:
    pytest.importorskip("watchfiles", reason="the extra watch is not installed")
    folder = Path(os.fsdecode(name))
    folder.mkdir(exist_ok=True)

    def write_while_it_is_watched() -> None:
        for _ in folder_changes([str(folder)]):
            Path(os.fsdecode(b"docs/rows\xe9.csv")).write_text("")

    with pytest.raises(SourceError, match=r"must be UTF-8; rename it$"):
        write_while_it_is_watched()


def test_folders_that_may_not_be_read_are_left_out(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchfiles = pytest.importorskip("watchfiles", reason="the extra watch is not installed")
    watch = watchfiles.watch

    def watch_if_readable(*paths: str, **options: Any) -> Iterator[Any]:
        # By the rights of a folder root is not stopped.
        if options["recursive"] or str(docs / "secret") in paths:
            raise PermissionError('Permission denied (os error 13) about ["/docs/secret"]')
        return watch(*paths, **options)

    def walk(folder: str, **options: Any) -> Iterator[Any]:
        return (each for each in os_walk(folder, **options) if not each[0].endswith("secret"))

    os_walk = os.walk
    monkeypatch.setattr(watchfiles, "watch", watch_if_readable)
    monkeypatch.setattr(os, "walk", walk)
    (docs / "secret").mkdir()
    changes = folder_changes(["docs"])
    assert next(changes) == frozenset()
    for path in (docs / "sub" / "new.txt", docs / "d" / "inner" / "e.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("new")
        while not {str(path), "/"} & next(changes):
            pass
    for text in ("in a folder that was not there at first", "only this has changed"):
        path.write_text(text)
        while not {str(path), "/"} & (found := next(changes)):
            pass
    assert "/" not in found
    changes.close()  # type: ignore[attr-defined]

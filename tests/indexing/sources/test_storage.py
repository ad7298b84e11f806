"""Object storage as a source, on fsspec's storage in memory."""

from __future__ import annotations

import errno
import gzip
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embedlib.errors import SourceError
from embedlib.indexing import BadRow, Document, Source, SourceOptions, open_source
from embedlib.indexing.sources import storage
from embedlib.indexing.sources.opening import open_documents
from embedlib.indexing.sources.storage import is_storage
from embedlib.packages.installing import install_line

memory = pytest.importorskip("fsspec.implementations.memory", reason="needs the extra storage")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    files = memory.MemoryFileSystem()
    monkeypatch.setattr(memory.MemoryFileSystem, "store", {})
    monkeypatch.setattr(memory.MemoryFileSystem, "pseudo_dirs", [""])
    files.pipe(
        {
            "/b/docs/a.txt": b"text of a",
            "/b/docs/sub/c d.md": b"# C\n\ntext of c",
            "/b/docs/sub/e.txt.gz": gzip.compress(b"text of e"),
            "/b/docs/photo.png": b"",
            "/b/docs/.hidden.txt": b"hidden",
            "/b/docs/.git/x.txt": b"hidden",
            "/b/docs/out.jsonl.embedlib/rows.txt": b"our own",
            "/b/docs/out.jsonl": b"our own",
            "/b/docs/empty.txt": b"",
            "/b/docs2/f.txt": b"of another prefix",
            "/b/t.csv": b"id,text\n1,one\n2,two\n",
            "/b/t.jsonl.gz": gzip.compress(b'{"id": 1, "text": "one"}\n{"id": 2'),
        }
    )
    return files


def open_url(url: str, told: list[str] | None = None, **options: Any) -> Source:
    return open_source([url], SourceOptions(**options), [].append if told is None else told.append)


def read(url: str, told: list[str] | None = None, **options: Any) -> list[Document | BadRow]:
    return list(open_url(url, told, **options))


def texts(rows: list[Document | BadRow]) -> dict[str | None, str]:
    return {row.id: row.text if isinstance(row, Document) else row.reason for row in rows}


@pytest.mark.parametrize("url", ["memory://b/docs", "memory://b/docs/"])
def test_a_prefix_is_a_folder(bucket: Any, url: str) -> None:
    told: list[str] = []
    bucket.pipe("/b/docs/on.embedlib.txt", b"about embedlib")
    bucket.pipe("/b/docs/sub/Makefile", b"all:")
    assert texts(read(url, told)) == {
        "memory://b/docs/a.txt": "text of a",
        "memory://b/docs/on.embedlib.txt": "about embedlib",
        "memory://b/docs/sub/c d.md": "# C\n\ntext of c",
        "memory://b/docs/sub/e.txt.gz": "text of e",
    }
    assert told == [
        "memory://b/docs/: 2 files of other kinds were skipped: .png, Makefile; name them with "
        "glob (--glob)",
        "empty files were skipped: 'memory://b/docs/empty.txt'",
    ]


def test_a_url_is_a_source_in_python(bucket: Any) -> None:
    rows = open_documents("memory://b/t.csv", SourceOptions(), [].append)
    assert texts(list(rows)) == {"1": "one", "2": "two"}


def test_a_url_is_the_only_name_of_a_file(bucket: Any) -> None:
    source: Any = open_url("memory://b/docs")
    source.keep_ids(lambda ids: pytest.fail("nothing is to be looked up"))
    assert texts(list(source)) == texts(read("memory://b/docs"))


def test_files_are_chosen_as_in_a_folder(bucket: Any) -> None:
    assert list(texts(read("memory://b/docs", glob=("sub/*",)))) == [
        "memory://b/docs/sub/c d.md",
        "memory://b/docs/sub/e.txt.gz",
    ]
    with pytest.raises(SourceError, match=r"^memory://b/docs/: has no csv file; 5 files of other"):
        read("memory://b/docs", input_format="csv")


def test_rows_of_a_file(bucket: Any) -> None:
    assert texts(read("memory://b/t.csv")) == {"1": "one", "2": "two"}
    assert texts(read("memory://b/t.csv", id_prefix="file")) == {
        "memory://b/t.csv#1": "one",
        "memory://b/t.csv#2": "two",
    }
    [good, bad] = read("memory://b/t.jsonl.gz")
    assert (good.id, type(bad)) == ("1", BadRow)
    assert bad.place == "line 2 of 'memory://b/t.jsonl.gz'"


def test_parquet_and_documents(bucket: Any, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": ["a", "b"], "text": ["one", "two"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    bucket.pipe("/b/t.parquet", (tmp_path / "t.parquet").read_bytes())
    source: Any = open_url("memory://b/t.parquet")
    assert source.__length_hint__() == 2
    assert texts(list(source)) == {"a": "one", "b": "two"}
    bucket.pipe("/b/page.html", b"<title>T</title><p>text of a page")
    assert texts(read("memory://b/page.html")) == {"memory://b/page.html": "text of a page"}


def test_a_large_file_is_read_piece_by_piece(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pipe("/b/big.txt", (b"word " * 4000 + b"\n") * 500)
    source = open_url("memory://b/big.txt", input_format="lines")
    tracemalloc.start()
    try:
        assert sum(isinstance(row, Document) for row in source) == 500
        assert tracemalloc.get_traced_memory()[1] < 4_000_000  # of 10 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("url", ["memory://b/absent", "memory://b/absent/", "memory://b/doc"])
def test_what_is_not_there_is_an_error(bucket: Any, url: str) -> None:
    with pytest.raises(SourceError, match=rf"^cannot read {url}: no such file or folder$"):
        read(url)


def test_an_object_that_is_removed_meanwhile_is_a_bad_row(bucket: Any) -> None:
    source = open_url("memory://b/docs")
    bucket.rm("/b/docs/a.txt")
    assert texts(list(source))["memory://b/docs/a.txt"] == "No such file or directory"


def test_any_name_in_a_folder_is_a_file(bucket: Any) -> None:
    bucket.pipe("/b/docs/a::b.txt", b"colons")
    assert "memory://b/docs/a::b.txt" in {document.id for document in read("memory://b/docs")}
    _, path = storage._resolve("memory://b/docs/a::b.txt")
    assert path.endswith("b/docs/a::b.txt")


def test_a_number_behind_a_host_is_its_port(bucket: Any) -> None:
    bucket.pipe("/host:22/a@b.txt", b"mail")
    assert texts(read("memory://host:22/a@b.txt")) == {"memory://host:22/a@b.txt": "mail"}


def test_a_slash_at_the_end_means_the_folder_and_not_the_file_of_its_name(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.pipe({"/b/both/x.txt": b"inside", "/b/both/a.txt": b"first"})

    def find(self: Any, path: str) -> list[str]:
        """As storage does that has objects for folders, and looks for names that begin so."""
        return ["/b/both/x.txt", "/b/both/a.txt", "/b/both", "/b/both/sub/", "/b/both2/y.txt"]

    told: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(memory.MemoryFileSystem, "find", find)
        patched.setattr(memory.MemoryFileSystem, "isfile", lambda self, path: path == "/b/both")
        source = open_url("memory://b/both/", told)
    assert list(texts(list(source))) == [
        "memory://b/both/a.txt",
        "memory://b/both/x.txt",
    ]
    assert told == []


def test_an_object_that_the_storage_refuses_is_a_bad_row(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = memory.MemoryFileSystem._open
    problem = OSError(errno.EINVAL, "Bad Request")

    def refuse(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("t.csv"):
            raise problem
        return opened(self, path, *arguments, **options)

    bucket.pipe("/b/docs/t.csv", b"id,text\n1,one\n")
    monkeypatch.setattr(memory.MemoryFileSystem, "_open", refuse)
    found = read("memory://b/docs", glob=("*.csv", "*.txt"))
    problem = PermissionError("not yours")
    assert texts(read("memory://b/docs", glob=("*.csv", "*.txt")))[None] == "Permission denied"
    bad = [item for item in found if isinstance(item, BadRow)]
    assert [row.place for row in bad] == ["the rest of 'memory://b/docs/t.csv'"]
    assert "the storage refuses it" in bad[0].reason
    assert len(found) > 1


@pytest.mark.parametrize("method", ["_open", "find"])
def test_storage_that_fails_ends_the_load(
    bucket: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no answer of https://me:secret@host/\nmore")

    monkeypatch.setattr(memory.MemoryFileSystem, method, fail)
    with pytest.raises(SourceError, match=r"no answer of .*run the same command again") as caught:
        read("memory://b/docs")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("module", "kind", "name"),
    [("spec", "AbstractFileSystem", "find"), ("asyn", "AsyncFileSystem", "_find")],
)
def test_a_folder_in_the_storage_that_cannot_be_listed_ends_the_load(
    module: str, kind: str, name: str, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = memory.MemoryFileSystem.ls
    problem: OSError = PermissionError("Permission denied: sub")

    def refuse(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("/sub"):
            raise problem
        own = {"name": f"{path}/", "type": "directory"}  # some list the folder itself
        return [*listed(self, path, *arguments, **options), own]

    # As of SFTP, FTP or SMB, which fsspec walks through folder by folder.
    walk = getattr(pytest.importorskip(f"fsspec.{module}"), kind)
    monkeypatch.setattr(memory.MemoryFileSystem, name, getattr(walk, name), raising=False)
    bucket.pipe("/b/docs/z.txt", b"text of z")
    assert list(texts(read("memory://b/docs"))) == [
        *("memory://b/docs/a.txt", "memory://b/docs/sub/c d.md", "memory://b/docs/sub/e.txt.gz"),
        "memory://b/docs/z.txt",
    ]
    monkeypatch.setattr(memory.MemoryFileSystem, "ls", refuse)
    with pytest.raises(SourceError, match=r"cannot read memory://b/docs/: Permission denied: sub"):
        read("memory://b/docs")
    problem = FileNotFoundError("removed meanwhile")
    assert list(texts(read("memory://b/docs"))) == [
        *("memory://b/docs/a.txt", "memory://b/docs/z.txt"),
    ]


def test_what_the_storage_says_of_a_url_is_told(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("Forbidden: b/o\nmore")

    spec = pytest.importorskip("fsspec.spec")
    for method in ("isfile", "isdir"):  # to which any OSError is a no, as in gcsfs
        monkeypatch.setattr(
            memory.MemoryFileSystem, method, getattr(spec.AbstractFileSystem, method)
        )
    assert len(read("memory://b/docs")) == 3
    monkeypatch.setattr(memory.MemoryFileSystem, "info", refuse)
    with pytest.raises(SourceError, match=r"^cannot read memory://b/docs: Forbidden: b/o; if the"):
        read("memory://b/docs")


def test_storage_that_fails_while_it_is_read_ends_the_load(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = iter(open_url("memory://b/t.csv"))

    def fail(*_: object) -> bytes:
        raise RuntimeError("timed out")  # as of packages that have errors of their own

    monkeypatch.setattr(memory.MemoryFile, "read", fail)
    with pytest.raises(
        SourceError, match=r"cannot read memory://b/t\.csv: timed out; if the storage"
    ):
        list(source)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memory://me:secret@b/docs", r"^memory://me:\*\*\*@b/docs: a URL takes no password"),
        ("memory://ann@b.c:secret@b/docs", r"^memory://ann@b\.c:\*\*\*@b/docs: a URL takes no"),
        ("memory://:secret@b/docs", r"^memory://:\*\*\*@b/docs: a URL takes no password"),
        ("memory://KEY:sec/ret@b/docs", r"^memory://KEY:\*\*\*@b/docs: a URL takes no password"),
        ("memory://b/a.zip::memory://c", "a file in another file is not read"),
        ("https://host/a.txt", "pages are not fetched; download it first"),
        ("http://host/a.txt", "pages are not fetched; download it first"),
        ("postgresql://me:secret@host/db", "no such file or folder; a database URL needs --sql"),
        ("nonsense://host/a.txt", "no such file or folder"),
    ],
)
def test_urls_that_are_refused(bucket: Any, url: str, reason: str) -> None:
    with pytest.raises(SourceError, match=reason) as caught:
        read(url)
    assert "secret" not in str(caught.value)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(SourceError) as caught:
        read("s3://bucket/docs")
    assert install_line("s3") in str(caught.value)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SourceError, match=r"cannot use gs://bucket/docs: .*gcsfs"):
        read("gs://bucket/docs")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SourceError) as caught:
        read("s3://bucket/docs")
    assert install_line("storage") in str(caught.value)


@pytest.mark.parametrize("path", ["b/docs", "b/docs/a.txt"])
def test_capitals_in_a_scheme_make_no_other_url(bucket: Any, path: str) -> None:
    assert read(f"MEMORY://{path}") == read(f"memory://{path}")


def test_a_url_of_a_disk_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert read(f"file://{tmp_path}") == read(f"FILE://{tmp_path}") == read(str(tmp_path))


def test_paths_are_no_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    files = ("docs", "-", "/a/b.txt", "C:/x", "a/b://c")
    others = ("sqlite:app.db", "sqlite:///app.db", "postgres://h/d", "HTTPS://h/a.txt")
    assert not any(map(is_storage, (*files, *others)))

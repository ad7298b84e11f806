"""Files in object storage, such as s3://BUCKET/PREFIX: through fsspec, and one package per kind."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from embedlib.errors import SourceError, first_line
from embedlib.indexing.sinks.urls import without_password
from embedlib.packages.installing import import_extra

_EXTRA: Final = "storage"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET_WITH_SLASH: Final = re.compile(r"[^/@:\[]*:(?!\d+(?:/|$)).*@")
"""As AWS makes them: KEY:SEC/RET@BUCKET. What a number follows is a host with its port."""
_LOCAL: Final = "file://"
_NO_STORAGE: Final = ("http", "https", "postgresql", "postgres", "sqlite")
"""Web servers list no files, and their URLs may hold keys, which would become ids. The others are
databases."""
_BUFFER_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 22
"""What one request fetches; s3fs would take 50 MiB."""


def normal_path(path: str) -> str:
    """Return the one name that a file has however its scheme is written: `S3://`, `file://`.

    Raises:
        SourceError: it is a URL, and the package that knows its scheme is missing.
    """
    if path.lower().startswith(_LOCAL):
        return path[len(_LOCAL) :]
    scheme, mark, rest = path.partition("://")
    return f"{scheme.lower()}{mark}{rest}" if is_storage(path) else path


def is_storage(path: str) -> bool:
    """Whether a path is a URL of object storage, and not a file or a database.

    Raises:
        SourceError: it is a URL, and the package that knows its scheme is missing.
    """
    found = _URL.match(path)
    if found is None:
        return False
    scheme = found[1].lower()
    if scheme in _NO_STORAGE:
        return False
    fsspec = import_extra("fsspec", _EXTRA, SourceError)
    return scheme in fsspec.available_protocols()


def is_folder(url: str) -> bool:
    """Whether files are below a URL; one that ends with / is a folder without being asked.

    Raises:
        SourceError: there is nothing, or the storage cannot be reached.
    """
    if "::" in url:  # inside of a listed folder it is a name like any other
        raise SourceError(f"{url}: a file in another file is not read; copy it out of there first")
    files, path = _resolve(url)
    if url.endswith("/"):
        return True
    try:
        if files.isfile(path):
            return False
        if files.isdir(path):
            return True
        files.info(path)  # to both, any error is a no; this one raises it
    except Exception as error:  # each kind of storage has errors of its own
        raise _failure(url, error) from error
    raise _failure(url, FileNotFoundError())


def list_folder(url: str) -> list[str]:
    """Return the names of all files below a URL, counted from there and sorted.

    Raises:
        SourceError: there is nothing, or the storage cannot be reached.
    """
    files, root = _resolve(url)
    prefix = f"{root.rstrip('/')}/"
    try:
        found = [name for name in _find(files, root) if name.startswith(prefix)]
    except Exception as error:  # each kind of storage has errors of its own
        raise _failure(url, error) from error
    if not found:
        raise _failure(url, FileNotFoundError())
    # A name that ends with / stands for the folder in programs that show folders.
    return sorted(name[len(prefix) :] for name in found if not name.endswith("/"))


def _find(files: Any, root: str) -> Iterator[str]:
    """Yield the names of all files below a folder.

    Storage of objects lists them at once. Others have folders, of which fsspec's own walk leaves
    out those that it cannot list, so that their files would be taken for removed ones.

    Raises:
        Exception: of the storage; a folder cannot be listed.
    """
    plain = import_extra("fsspec.spec", _EXTRA, SourceError).AbstractFileSystem
    parallel = import_extra("fsspec.asyn", _EXTRA, SourceError).AsyncFileSystem
    found = getattr(type(files), "_find", type(files).find)
    if found not in (plain.find, parallel._find):
        yield from files.find(root)
        return
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            listed = files.ls(folder, detail=True)
        except FileNotFoundError:
            continue  # it was removed meanwhile
        for entry in listed:
            if entry["type"] != "directory":
                yield entry["name"]
            elif entry["name"].rstrip("/") != folder.rstrip("/"):
                waiting.append(entry["name"])


@contextmanager
def open_object(url: str) -> Iterator[io.BufferedReader]:
    """Open a file for reading; it is fetched piece by piece.

    Raises:
        OSError: it is not there any more, or may not be read.
        SourceError: the storage failed; the same load may succeed later. Reading may raise it too.
    """
    files, path = _resolve(url)
    with _explaining(url):
        file = files.open(path, "rb", block_size=_BLOCK_BYTES)
    with closing(file):
        # fsspec's own lines have no limit of their length.
        yield io.BufferedReader(_Raw(file, url), _BUFFER_BYTES)


class _Raw(io.RawIOBase):
    """A file of fsspec as `io.BufferedReader` takes it."""

    def __init__(self, file: Any, url: str) -> None:
        self._file = file
        self._url = url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        with _explaining(self._url):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _resolve(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises:
        SourceError: the URL is refused, or a package is missing.
    """
    scheme, _, rest = url.partition("://")
    # A user may be an address: ann@corp.com:secret@host.
    if ":" in rest.partition("/")[0].rpartition("@")[0] or _SECRET_WITH_SLASH.match(rest):
        raise SourceError(
            f"{without_password(url)}: a URL takes no password or key; set it in the environment "
            "or a file, as the package of this storage documents it"
        )
    if scheme.lower() in ("s3", "s3a"):
        import_extra("s3fs", "s3", SourceError)
    fsspec = import_extra("fsspec.core", _EXTRA, SourceError)
    try:
        # Without a cache of lists: what an object was when it was listed may be outdated.
        files, path = fsspec.url_to_fs(url.partition("::")[0], use_listings_cache=False)
        if "::" in url:  # fsspec takes it for a file in another file
            path = files._strip_protocol(url)
    except Exception as error:  # such as ImportError: Please install gcsfs to access Google Storage
        raise SourceError(f"cannot use {without_password(url)}: {_reason(error)}") from error
    return files, str(path)


@contextmanager
def _explaining(url: str) -> Iterator[None]:
    """Raise OSError for a file that is not there, and SourceError for storage that fails."""
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EACCES
        raise OSError(code, os.strerror(code)) from error
    except Exception as error:  # each kind of storage has errors of its own
        # Of this object, such as one under a key of its own.
        if isinstance(error, OSError) and error.errno == errno.EINVAL:
            raise OSError(errno.EINVAL, f"the storage refuses it: {_reason(error)}") from error
        raise _failure(url, error) from error


def _failure(url: str, error: Exception) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return SourceError(f"cannot read {url}: no such file or folder")
    return SourceError(
        f"cannot read {url}: {_reason(error)}; if the storage did not answer, run the same command "
        "again to continue"
    )


def _reason(error: Exception) -> str:
    return without_password(first_line(error))

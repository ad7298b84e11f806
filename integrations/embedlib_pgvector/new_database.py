"""A database whose creation was killed half-way is made again, as it holds no rows yet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embedlib.indexing import import_extra

_END_SECONDS = 30.0


class NewDatabase:
    """The mark of a database that is being created: a file beside its folder.

    initdb wants an empty folder, writes PG_VERSION early and is not ended by a kill of its parent.
    So the folder itself does not show whether it is complete, until the first server writes a log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._log = self._folder / "log"
        self._mark = self._folder.with_name(f".{self._folder.name}.embedlib-new")

    @property
    def is_unfinished(self) -> bool:
        """Whether initdb has begun and no process has seen it end."""
        return self._mark.is_file() and not os.path.exists(self._log)

    @contextmanager
    def being_created(self) -> Iterator[None]:
        """Mark the folder, which is empty; empty it again if initdb fails or is interrupted."""
        with suppress(OSError):  # a folder in one that cannot be written is made without a mark
            self._mark.touch()
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the next start tries it again, by the mark
                if not os.path.exists(self._log):
                    self.clear()
                self.end()
            raise

    def end(self) -> None:
        """Remove the mark: the database is complete, or the folder empty."""
        with suppress(OSError):
            self._mark.unlink()

    def clear(self) -> None:
        """Empty the folder; nobody else may use it meanwhile."""
        self._end_initdb()
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _end_initdb(self) -> None:
        """End what still fills the folder: initdb, or servers of it, which work in the folder."""
        psutil = import_extra("psutil", "pg-local")
        for process in psutil.process_iter(["name", "cmdline", "cwd"]):
            named = [process.info["cwd"] or "", *(process.info["cmdline"] or [])]
            if process.info["name"] in ("initdb", "postgres") and any(
                Path(word).resolve() == self._folder for word in named if word.startswith("/")
            ):
                family = [process]
                with suppress(psutil.NoSuchProcess):
                    family += process.children(recursive=True)
                for member in family:
                    with suppress(psutil.NoSuchProcess):
                        member.kill()
                psutil.wait_procs(family, timeout=_END_SECONDS)

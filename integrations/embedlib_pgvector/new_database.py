"""A database whose creation was killed half-way is made again, as it holds no rows yet."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from embedlib.indexing import import_extra

_END_SECONDS = 30.0


class NewDatabase:
    """The mark of a database that is being created: a file beside its folder.

    initdb wants an empty folder, writes PG_VERSION early and is not ended by a kill of its parent,
    so the folder itself does not show whether it is complete.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._mark = self._folder.with_name(f".{self._folder.name}.embedlib-new")

    @property
    def is_unfinished(self) -> bool:
        """Whether the creation has begun and no process has seen it end."""
        return self._mark.is_file()

    def begin(self) -> None:
        """Mark the folder, which is empty."""
        with suppress(OSError):  # a folder in one that cannot be written is made without a mark
            self._mark.touch()

    def end(self) -> None:
        """Remove the mark: nobody was killed."""
        with suppress(OSError):
            self._mark.unlink()

    def clear(self) -> None:
        """Empty the folder if initdb did not end; nobody else may use it meanwhile."""
        if self._had_server():
            return
        self._end_initdb()
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _had_server(self) -> bool:
        """Whether a server was started after initdb; backends of initdb write negative numbers."""
        try:
            process = (self._folder / "postmaster.pid").read_text().split()[0]
        except (OSError, IndexError):
            return False
        return process.isdecimal()

    def _end_initdb(self) -> None:
        psutil = import_extra("psutil", "pg-local")
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or []
            if process.info["name"] == "initdb" and any(
                Path(word).resolve() == self._folder for word in words if word.startswith("/")
            ):
                family = [process]
                with suppress(psutil.NoSuchProcess):
                    family += process.children(recursive=True)
                for member in family:
                    with suppress(psutil.NoSuchProcess):
                        member.kill()
                psutil.wait_procs(family, timeout=_END_SECONDS)

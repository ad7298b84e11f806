"""The trial of a form: loads that are killed, and what is stored beside a load that lives."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.acceptance.source_kills.forms import FORMS, Texts, make_texts
from tests.acceptance.source_kills.loads import LoadJob, load
from tests.campaign.stored import Stored, difference, read

PATIENCE_S: Final = 600.0
"""After this a load hangs."""
_IMPORTS: Final = (
    *("embedlib.indexing.pipeline", "embedlib.indexing.sinks.file_sink", "embedlib.testing"),
    "tests.acceptance.source_kills.loads",
)


@dataclass
class Findings:
    """What was done with a form, and what was wrong."""

    form: str
    kills: list[int] = field(default_factory=list)
    """After how many texts, of all loads together."""
    num_twice: int = 0
    """Texts that were embedded again because of the kills."""
    complaints: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return it in words."""
        said = "; ".join(self.complaints) or "rows equal, nothing embedded by the run after it"
        kills = ", ".join(map(str, self.kills))
        return f"{self.form:12} killed after {kills} texts; {self.num_twice} embedded twice; {said}"


class Trial:
    """One form: a load that lives, one that is killed some times, and one of changed documents."""

    def __init__(self, form: str, folder: Path, num_documents: int, kills: int, seed: int) -> None:
        """Take the form, an empty folder, and the numbers; `seed` draws the instants."""
        self.found = Findings(form)
        self._form = FORMS[form]
        self._folder = folder
        self._num_documents = num_documents
        self._num_kills = kills
        self._batch_rows = max(num_documents // 10, 1)
        self._log = folder / "killed.log"
        self._dice = random.Random(f"{seed} {form}")
        self._forking: Any = multiprocessing.get_context("forkserver")
        self._forking.set_forkserver_preload(list(_IMPORTS))

    def run(self) -> Findings:
        """Do all of it."""
        texts = make_texts(self._num_documents)
        self._write(texts)
        self._log.touch()
        self._load("whole", log=self._folder / "whole.log")
        for _ in range(self._num_kills):
            self._kill()
        self._load("killed")
        whole, killed = self._stored("whole"), self._stored("killed")
        self._check(_texts(whole) == sorted(texts.values()), "the texts are others")
        unlike = difference(killed, whole)
        self._check(not unlike, unlike)
        self.found.num_twice = self._num_embedded() - len(texts)
        most = self._num_kills * self._batch_rows
        self._check(self.found.num_twice <= most, f"at most {most} may be embedded twice")
        self._check(self._load("killed") == 0, "the run after it embeds something")
        self._check_change()
        return self.found

    def _check_change(self) -> None:
        """Load documents of which one is another, one is gone and one is new."""
        texts = make_texts(self._num_documents, is_changed=True)
        self._write(texts)
        num_embedded = self._load("killed", is_changed=True)
        self._check(num_embedded == 2, f"two texts changed, {num_embedded} were embedded")
        if not self._form.sees_missing:
            gone = make_texts(self._num_documents).items() - texts.items()
            texts |= {name: text for name, text in gone if name not in texts}
        is_right = _texts(self._stored("killed")) == sorted(texts.values())
        self._check(is_right, "the texts are others after a change")

    def _kill(self) -> None:
        """Start a load that dies when it has embedded some of what is left."""
        most = self._num_documents // (self._num_kills + 1)
        self._load("killed", dies_after=self._dice.randrange(1, most))
        self.found.kills.append(self._num_embedded())

    def _load(self, name: str, **job: Any) -> int:
        """Run a load in a process of its own; return how many texts it has embedded."""
        before = self._num_embedded()
        made = LoadJob(
            **{
                "form": self.found.form,
                "folder": self._folder,
                "url": self._url(name),
                "num_documents": self._num_documents,
                "batch_rows": self._batch_rows,
                "log": self._log,
                **job,
            }
        )
        process = self._forking.Process(target=load, args=(made,), daemon=True)
        process.start()
        process.join(PATIENCE_S)
        expected = -signal.SIGKILL if made.dies_after else 0
        self._check(process.exitcode == expected, f"a load ended with {process.exitcode}")
        process.kill()
        process.join()
        return self._num_embedded() - before

    def _write(self, texts: Texts) -> None:
        """Write the source, in the folder, from a process of its own: it may start threads."""
        process = self._forking.Process(target=_write, args=(self.found.form, self._folder, texts))
        process.start()
        process.join(PATIENCE_S)
        self._check(process.exitcode == 0, f"the source was not made: {process.exitcode}")

    def _url(self, name: str) -> str:
        return f"jsonl:{self._folder / name}.jsonl"

    def _stored(self, name: str) -> Stored:
        return read(self._url(name))

    def _num_embedded(self) -> int:
        return self._log.stat().st_size

    def _check(self, is_right: bool, complaint: str) -> None:
        if not is_right:
            self.found.complaints.append(complaint)


def _write(form: str, folder: Path, texts: Texts) -> None:
    os.chdir(folder)
    FORMS[form].write(texts)


def _texts(stored: Stored) -> list[str]:
    return sorted(row[2] for row in stored.values())

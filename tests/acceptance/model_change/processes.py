"""What runs in processes of its own: a load that may be killed, and a client that searches."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import embedlib
from embedlib import Search
from embedlib.errors import EmbedlibError
from embedlib.indexing import IndexProgress, open_sink, stored_state
from tests.indexing.two_models import Model, documents, is_of

IMPORTS: Final = (
    *("embedlib.indexing.pipeline", "embedlib.indexing.searches.retrieval", "embedlib.testing"),
    *("embedlib.indexing.sinks.file_sink", "embedlib_pgvector.sink", "embedlib_qdrant.address"),
    "tests.acceptance.model_change.processes",
)
"""Imported once, before processes are forked; a package that is missing is left out."""
WRITER_IS_THERE: Final = ("another writer is active", "is being written by")
"""The server has not noticed yet that the process before was killed: the load is run again."""
REFUSED: Final = 7
"""Exit code of a load that is to be run again."""
QUESTIONS: Final = 10
"""After so many a client that is not one of the long-lived opens its search again."""


def dim_of(model: str) -> int:
    """Two models of three have vectors of the same length: these could be mixed in silence."""
    return 48 if int(model.removeprefix("m")) % 3 == 2 else 32


def model_named(name: str) -> Model:
    return Model(name, dim_of(name))


class SlowModel(Model):
    """Embeds about so many texts in a second, so that there is time to kill its load."""

    def __init__(self, name: str, texts_per_second: float) -> None:
        super().__init__(name, dim_of(name))
        self._seconds = 1 / texts_per_second

    def submit_batch(self, texts: Any, *, role: str) -> Any:
        threading.Event().wait(self._seconds * len(texts))
        return super().submit_batch(texts, role=role)


@dataclass(frozen=True)
class LoadJob:
    """A load.

    Attributes:
        url: where to.
        model: its name.
        num_documents: of the source.
        texts_per_second: how fast the model is.
        replace: whether the rows are loaded beside others.
        notes: a file with a line when the load has begun, when its rows are written, and for each
            line that it tells.
    """

    url: str
    model: str
    num_documents: int
    texts_per_second: float
    replace: bool
    notes: Path


def load(job: LoadJob) -> None:
    """Change the model of a destination."""
    with job.notes.open("a", encoding="utf-8", buffering=1) as notes:
        notes.write("began\n")
        is_finishing = False

        def tell(line: str) -> None:
            notes.write(f"told {line}\n")

        def on_progress(progress: IndexProgress) -> None:
            nonlocal is_finishing
            if progress.is_finishing and not is_finishing:
                is_finishing = True
                notes.write("finishing\n")

        try:
            embedlib.index(
                documents(job.num_documents),
                job.url,
                embedder=SlowModel(job.model, job.texts_per_second),
                chunk=False,
                batch_rows=200,
                replace=job.replace,
                tell=tell,
                on_progress=on_progress,
            )
        except EmbedlibError as error:
            notes.write(f"error {error}\n")
            raise SystemExit(REFUSED if _is_early(error) else 1) from None


def drop(url: str, notes: Path) -> None:
    """Remove the old rows."""
    with notes.open("a", encoding="utf-8", buffering=1) as file:
        file.write("began\nfinishing\n")
        try:
            embedlib.drop_old(url)
        except EmbedlibError as error:
            file.write(f"error {error}\n")
            raise SystemExit(REFUSED if _is_early(error) else 1) from None


def _is_early(error: EmbedlibError) -> bool:
    return any(part in str(error) for part in WRITER_IS_THERE)


@dataclass
class Found:
    """What a client saw."""

    searches: Counter[str] = field(default_factory=Counter)
    """By the model that they were made with."""
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ClientJob:
    """A client that searches until it is told to stop.

    Attributes:
        url: of the destination.
        num_documents: in it.
        lives_long: whether it keeps its search until it is told to open it again.
        seed: of its questions.
        pause_s: between two questions.
    """

    url: str
    num_documents: int
    lives_long: bool
    seed: int
    pause_s: float


def ask(job: ClientJob, edition: Any, opened: Any, place: int, pipe: Connection) -> None:
    """Search; send what was found at the end.

    Args:
        job: what to do.
        edition: a shared number; searches are opened again when it changes, and -1 means the end.
        opened: shared numbers; the edition for which each client has opened its search.
        place: of this client in `opened`.
        pipe: where to send it.
    """
    found, dice, pause = Found(), random.Random(job.seed), threading.Event()
    while edition.value >= 0:
        current = edition.value
        try:
            with closing(open_sink(job.url)) as sink:
                name = stored_state(sink).model
            with Search(job.url, model_named(name)) as search:
                opened[place] = current
                asked = 0
                while edition.value == current and (job.lives_long or asked < QUESTIONS):
                    asked += 1
                    _ask_once(search, name, dice.randrange(job.num_documents), found)
                    pause.wait(job.pause_s)
        except EmbedlibError as error:
            found.complaints.append(f"a search fails: {error}")
        if len(found.complaints) > 20:
            break
    opened[place] = 1 << 30
    pipe.send(found)


def _ask_once(search: Search, name: str, number: int, found: Found) -> None:
    question = f"text {number}"
    hits = search.search(question, 5)
    found.searches[name] += 1
    if not is_of(name, question, hits, dim_of(name)):
        found.complaints.append(f"a question of {name} found rows of another model")
    if len(hits) != 5:
        found.complaints.append(f"{len(hits)} rows were found, not 5")
    if hits and hits[0].text != question:
        found.searches["the nearest row was missed by the index"] += 1

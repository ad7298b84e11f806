"""`RememberedVectors`: measurements that survive the process that made them."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import numpy as np

from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.new_file import new_file

_MISSING_OR_DAMAGED = (
    OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What numpy and zipfile raise; a crash or a bad disk may leave any bytes."""


class RememberedVectors:
    """Vectors of one model, by precision, kept layers and texts.

    Measuring and searching take minutes, and the process beside an Embedder may be ended after
    seconds; what it has computed serves the next one.
    """

    def __init__(self, folder: Path | None, *facts: object) -> None:
        """Read from and write into a folder.

        Args:
            folder: of vectors of one kind of machine; None: vectors are computed every time.
            facts: JSON values that vectors depend on, such as the model's fingerprint.
        """
        self._folder = folder
        self._facts = facts

    def get(
        self,
        precision: str,
        kept: Collection[str],
        texts: FidelityTexts,
        compute: Callable[[], Embedded],
    ) -> Embedded:
        """Return the vectors of texts; compute and keep them if the folder does not have them.

        Args:
            precision: that they are computed in.
            kept: linear layers that are computed in a higher one.
            texts: the texts.
            compute: computes their vectors.
        """
        if self._folder is None:
            return compute()
        key = json.dumps([self._facts, precision, sorted(kept), texts.digest])
        place = self._folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.npz"
        found = _read(place)
        if found is None:
            found = compute()
            with suppress(OSError):  # without it the next process takes longer
                place.parent.mkdir(parents=True, exist_ok=True)
                with new_file(place) as part, part.open("wb") as file:
                    np.savez(file, queries=found.queries, documents=found.documents)
        return found

    def forget(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _read(place: Path) -> Embedded | None:
    try:
        # numpy leaves a damaged file open that it has opened itself.
        with place.open("rb") as file, np.load(file) as stored:
            return Embedded(queries=stored["queries"], documents=stored["documents"])
    except _MISSING_OR_DAMAGED:  # what is computed then takes its place
        return None

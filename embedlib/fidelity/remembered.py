"""`RememberedChoices`: measurements that survive the process that made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np

from embedlib.fidelity.outputs import Embedded
from embedlib.fidelity.search import Choices
from embedlib.fidelity.texts import FidelityTexts


class RememberedChoices:
    """Implements `search.Choices`: what was measured once is read from a folder.

    A search takes minutes, and the process beside an Embedder may be ended after seconds.
    """

    def __init__(self, choices: Choices, folder: Path) -> None:
        """Measure with `choices` what `folder` does not have."""
        self.precision = choices.precision
        self.kept_in = choices.kept_in
        self.units = choices.units
        self._choices = choices
        self._folder = folder

    def embed(self, kept: Collection[str], texts: FidelityTexts) -> Embedded:
        """Return the vectors of texts with these layers kept."""
        key = json.dumps([self.precision, sorted(kept), texts.digest])
        place = self._folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.npz"
        found = _read(place)
        if found is None:
            found = self._choices.embed(kept, texts)
            with suppress(OSError):  # without it the next search takes longer
                _write(place, found)
        return found


def _read(place: Path) -> Embedded | None:
    try:
        with np.load(place) as stored:
            return Embedded(queries=stored["queries"], documents=stored["documents"])
    except (OSError, ValueError, KeyError, EOFError):  # missing or damaged
        return None


def _write(place: Path, embedded: Embedded) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=place.parent, prefix=".", delete=False) as part:
        np.savez(part, queries=embedded.queries, documents=embedded.documents)
    Path(part.name).replace(place)

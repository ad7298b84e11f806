"""Published models that load, with what is known of each before it is downloaded.

`catalog.json` is a list of them. Source: mteb 2.26.24, models/model_implementations, and for
rerankers, classifiers and what mteb leaves out or has wrong (the sizes of bge-*-zh) the models'
cards; what neither states is left out. Prompts come from `known_models.json` and
`known_rerankers.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import Final, Literal

from embedlib.models.families.table import ROWS
from embedlib.models.known_models import known_model
from embedlib.models.known_rerankers import template_of

_ALSO: Final = {
    "late-interaction": "colbert multi-vector",
    "reranker": "cross-encoder",
    "sparse": "splade",
}
"""What the kinds are called elsewhere."""


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One published model."""

    name: str
    """On the hub."""
    kind: Literal["classifier", "embedder", "late-interaction", "reranker", "sparse"]
    """Of these, an `Embedder` loads all but classifiers and rerankers."""
    family: str
    """The key of its row in the table of families, or "static": a table of token vectors."""
    millions: float | None = None
    """Of parameters."""
    dim: int | None = None
    """Of its vectors."""
    tokens: int | None = None
    """The longest text."""
    licence: str = ""

    @property
    def model_type(self) -> str | None:
        """The `model_type` of its config.json; a static model has none."""
        return None if self.family == "static" else ROWS[self.family].model_type

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that embedlib adds where the folder has none, by name."""
        return known_model(self.name).templates

    @property
    def template(self) -> str | None:
        """The template of a reranker that needs one."""
        return template_of(self.name) if self.kind == "reranker" else None

    def matches(self, words: str) -> bool:
        """Return whether every word is part of the name, the kind, the family or the licence."""
        kind = f"{self.kind} {_ALSO.get(self.kind, '')}"
        text = f"{self.name} {kind} {self.family} {self.model_type or ''} {self.licence}".lower()
        return all(word in text for word in words.lower().split())


def catalog() -> Iterator[CatalogEntry]:
    """Yield every model of `catalog.json`."""
    path = files("embedlib.models") / "catalog.json"
    for entry in json.loads(path.read_text(encoding="utf-8")):
        yield CatalogEntry(**entry)


def nearest_published(name: str) -> str | None:
    """Return the listed model that is named nearly so, whoever owns it; None: none is."""
    names = {entry.name.lower().rpartition("/")[2]: entry.name for entry in catalog()}
    near = get_close_matches(name.lower().rpartition("/")[2], names, n=1, cutoff=0.8)
    return names[near[0]] if near else None

"""What models' folders leave out, prompts above all: `known_models.json`, by the hub's name.

    {"models": [names], "source": where it is written,
     "prompts": {name: prompt}, "query_tasks": {task: prompt of queries for it},
     "query_template": prompt of a query with {task} in it, "default_task": what fills it,
     "truncation": how vectors are made shorter}

A name is looked up as the user gave it; a folder has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Truncation = Literal["slice", "layer_norm"]


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """What is known of a model beside its folder; nothing by default."""

    source: str = ""
    """Where it is written."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name."""
    query_tasks: Mapping[str, str] = field(default_factory=dict)
    """Prompts of queries by task; documents keep their own for all of these."""
    query_template: str | None = None
    """Prompt of a query, with `{task}` for a task in words, and `{text}` where the text stands if
    that is not the end."""
    default_task: str | None = None
    """The task of a query for which none is given."""
    truncation: Truncation = "slice"
    """layer_norm: before its first dimensions are taken a vector is normed over all of them,
    without weights, and what is left gets unit length."""


def known_model(name: str) -> KnownModel:
    """Return what is known of a hub model, by its exact name."""
    for entry in read_entries():
        if name in entry["models"]:
            return KnownModel(**{key: value for key, value in entry.items() if key != "models"})
    return KnownModel()


def read_entries() -> list[dict[str, Any]]:
    """Return the whole file."""
    path = Path(__file__).with_suffix(".json")
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries

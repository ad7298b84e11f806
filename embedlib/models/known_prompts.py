"""Prompts of models whose folder lacks them: `known_prompts.json`, by the hub's name.

    {"models": [names], "source": where it is written,
     "prompts": {name: prompt}, "query_tasks": {task: prompt of queries for it},
     "query_template": prompt of a query with {task} in it, "default_task": what fills it}

A name is looked up as the user gave it; a folder has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class KnownPrompts:
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


def known_prompts(name: str) -> KnownPrompts:
    """Return what is known of a hub model, by its exact name."""
    for entry in read_entries():
        if name in entry["models"]:
            return KnownPrompts(**{key: value for key, value in entry.items() if key != "models"})
    return KnownPrompts()


def read_entries() -> list[dict[str, Any]]:
    """Return the whole file."""
    path = Path(__file__).with_suffix(".json")
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries

"""Facts about published models that their folders leave out, mainly prompts.

They are in `known_models.json`, a list of entries, looked up by the model's name on the hub:

    {"models": [names], "source": the page that states the facts,
     "prompts": {name: prompt}, "query_tasks": {task: the query prompt for it},
     "query_template": the query prompt, with {task} in it, "default_task": the default for {task},
     "role_names": {"query" or "document": the name of that prompt in the folder},
     "truncation": how vectors are shortened}

The look-up takes the name exactly as the user gave it. A local folder has no entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

Truncation = Literal["slice", "layer_norm"]


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """Facts about one model that its folder leaves out; empty by default."""

    source: str = ""
    """The page that states these facts."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name."""
    query_tasks: Mapping[str, str] = field(default_factory=dict)
    """Query prompts by task. Documents keep their own prompt for all of these tasks."""
    query_template: str | None = None
    """Query prompt, with `{task}` for a task in words. `{text}` marks the place of the text if that
    is not the end."""
    default_task: str | None = None
    """The task of a query if the call gives none."""
    role_names: Mapping[str, str] = field(default_factory=dict)
    """By role, the name of its prompt in a folder that calls it neither query nor document."""
    truncation: Truncation = "slice"
    """slice: take the first dimensions of the vector. layer_norm: first apply a layer norm without
    weights over all dimensions, then take the first ones and scale them to unit length."""

    @property
    def templates(self) -> dict[str, str]:
        """The prompts by name, with the query template."""
        queries = {} if self.query_template is None else {"query": self.query_template}
        return {**self.prompts, **queries}


def known_model(name: str) -> KnownModel:
    """Return the known facts about a hub model, by its exact name; empty if there are none."""
    for entry in read_entries():
        if name in entry["models"]:
            return KnownModel(**{key: value for key, value in entry.items() if key != "models"})
    return KnownModel()


def read_entries() -> list[dict[str, Any]]:
    """Return all entries of `known_models.json`."""
    path = files("embedlib.models") / "known_models.json"
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries

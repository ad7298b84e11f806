"""What texts are for, as clients spell it, and the prompt that follows from it.

Source: https://api.jina.ai/redoc; cohere-python 7.3, `types/embed_input_type.py`; voyageai 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from embedlib.embedder import Embedder
from embedlib.models.prompts import Role
from embedlib.serve.errors import HTTPError

_TASKS: Final[Mapping[str, Role | None]] = MappingProxyType(
    {
        "retrieval.query": "query",
        "retrieval.passage": "document",
        **dict.fromkeys(("text-matching", "classification", "clustering", "separation")),
    }
)
"""Jina's tasks, and the role whose prompt stands for each."""


def prompt_of(
    session: Embedder, input_type: str | None, prompt_name: str | None, task: str | None
) -> tuple[Role | None, str | None]:
    """Return the role of the texts, and the name of the prompt.

    Raises:
        HTTPError: a field is unknown, or two choose the prompt.
    """
    role = role_of(input_type)
    if not task:
        return role, prompt_name
    if input_type or prompt_name:
        raise HTTPError(
            400,
            "task, input_type and prompt_name each choose the prompt; give one",
            param="task",
        )
    has_prompt = task in session.prompts
    if not has_prompt and task not in _TASKS:
        known = ", ".join(dict.fromkeys((*_TASKS, *session.prompts)))
        raise HTTPError(400, f"task = {task!r:.60}; it must be one of {known}", param="task")
    return _TASKS.get(task), task if has_prompt else None


def role_of(input_type: str | None) -> Role | None:
    """Return the role that clients spell in several ways.

    Raises:
        HTTPError: it is none of them.
    """
    match input_type:
        case None | "" | "classification" | "clustering":
            return None
        case "query" | "search_query":
            return "query"
        case "document" | "passage" | "search_document":
            return "document"
    raise HTTPError(
        400, f"input_type = {input_type!r:.40}; it must be query or document", param="input_type"
    )

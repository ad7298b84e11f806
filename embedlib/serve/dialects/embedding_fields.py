"""Fields of the routes for vectors: what texts are for, and the type of the numbers.

Source: https://api.jina.ai/redoc; cohere-python 7.3, `types/embed_input_type.py`; voyageai 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from numpy.typing import NDArray

from embedlib.embedder import Embedder
from embedlib.errors import ConfigError
from embedlib.models.prompts import Role
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.sessions import check_quantization, ranges_of
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.quantization import quantize

_TASKS: Final[Mapping[str, Role | None]] = {
    "retrieval.query": "query",
    "retrieval.passage": "document",
    **dict.fromkeys(("text-matching", "classification", "clustering", "separation")),
}
"""Jina's tasks, and the role whose prompt stands for each."""
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
"""Cohere's names; base64 is of float32."""


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
        raise HTTPError.wrong_value("task", task, f"it must be one of {known}")
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
    raise HTTPError.wrong_value("input_type", input_type, "it must be query or document")


def check_type(
    session: Embedder,
    kind: EmbeddingType,
    field: str,
    *,
    dimensions: int | None,
    normalizes: bool = False,
) -> None:
    """Check that a model has what a type of its vectors needs.

    Args:
        session: the model.
        kind: the type.
        field: of the body, which names the type.
        dimensions: that are kept; None: all.
        normalizes: whether the vectors are scaled to unit length.

    Raises:
        HTTPError: it has no ranges of its dimensions, or those of other vectors.
    """
    if kind == "float" or kind == "base64":
        return
    if kind in ("int8", "uint8") and ranges_of(session) is None:
        raise HTTPError(
            400,
            f"{field} = {kind!r}, which needs the range of every dimension; ask for float or "
            "binary, or serve an Embedder with quantization_ranges through create_app",
            param=field,
        )
    try:
        check_quantization(session, kind, dimensions, normalizes=normalizes)
    except ConfigError as error:
        raise HTTPError(400, str(error), param=field) from None


def as_type(rows: Vectors, kind: EmbeddingType, session: Embedder) -> NDArray[Any]:
    """Return float32[N, D] in a type that `check_type` has let pass."""
    if kind == "float" or kind == "base64":
        return rows
    return quantize(rows, kind, ranges_of(session))

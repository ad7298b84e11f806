"""What a server has: OpenAI's `/v1/models`, with more facts, and Infinity's `/models`.

Source: openai-python 3.54, `types/model.py`; infinity_client, `models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from embedlib.embedder import Embedder
from embedlib.engines.base import Lane
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ServedModel
from embedlib.serve.models.sessions import engine_of
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Exchange


async def models(exchange: Exchange, *, owner: str) -> Response:
    """Answer `GET /v1/models`."""
    found = [_describe(model, owner) for model in exchange.shared.catalog]
    return await exchange.answer({"object": "list", "data": found})


async def model(exchange: Exchange, *, owner: str) -> Response:
    """Answer `GET /v1/models/NAME`; a name may have slashes."""
    for found in exchange.shared.catalog:
        if found.name == exchange.rest:
            return await exchange.answer(_describe(found, owner))
    raise HTTPError(
        404, f"no model {exchange.rest!r:.80} here; GET /v1/models lists them", "not_found"
    )


def _describe(model: ServedModel, owner: str) -> Mapping[str, object]:
    """Return what is said of a model, with this owner."""
    facts: dict[str, object] = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": owner,
        "root": model.source,
        "state": model.state,
    }
    if model.error:
        facts["error"] = model.error
    session = model.session
    num_texts = sum(model.admission.queued(lane).texts for lane in Lane)
    # As Infinity's clients read it.
    facts["stats"] = {
        "queue_absolute": num_texts,
        "queue_fraction": num_texts / model.options.max_bulk_texts,
    }
    if session is None:
        return facts
    facts |= {
        "task": model.task,
        "tasks": model.tasks,
        "max_input_length": session.max_seq_length,
        "max_model_len": session.max_seq_length,  # as vLLM's clients read it
        "precision": session.precision,
        "engine": type(engine_of(session)).__name__,
    }
    if isinstance(session, Embedder):
        facts |= {
            "dimensions": session.get_embedding_dimension(),
            "prompts": sorted(session.prompts),
        }
    else:
        facts["labels"] = list(session.labels)
    return facts


ROUTES = tuple(
    Route("GET", f"{prefix}{path}", partial(handle, owner=owner), OPENAI, summary)
    # Infinity's client asks without /v1, and takes no other owner than its own server.
    for prefix, owner in (("/v1", "embedlib"), ("", "infinity"))
    for path, handle, summary in (
        ("/models", models, "The models of this server."),
        ("/models/", model, "One model of this server."),
    )
)

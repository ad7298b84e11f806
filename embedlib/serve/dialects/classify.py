"""Classification as vLLM spells it and, with `raw_scores`, as Infinity does.

Source: vLLM, `entrypoints/pooling/classify`; Infinity, `infinity_server.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedlib.classifier import Classifier
from embedlib.serve.dialects.dialect import OPENAI, Route
from embedlib.serve.dialects.vllm import PoolingFields, take_pooling_fields
from embedlib.serve.models.compute import score_texts
from embedlib.serve.requests.asgi import Response, new_id
from embedlib.serve.requests.exchange import Exchange, usage_of
from embedlib.serve.wire import Texts, texts_of
from embedlib.session.label_scores import label_scores


class ClassifyBody(PoolingFields, kw_only=True):
    """The body of `POST /classify`."""

    foreign: ClassVar[Mapping[str, str]] = {
        **PoolingFields.foreign,
        "labels": "the texts without labels: those of the model are told",
    }
    input: Texts
    labels: None = None
    """Jina's, of the request's own, which are refused: only null."""
    raw_scores: bool | msgspec.UnsetType | None = msgspec.UNSET
    """Infinity's; where it is there, so is its answer."""


async def classify(exchange: Exchange) -> Response:
    """Answer `POST /classify`."""
    body = await exchange.read(ClassifyBody)
    texts = texts_of(body.input, "input", exchange.shared.options)
    take_pooling_fields(exchange, body)
    model = exchange.find(body.model, "classify")
    is_raw = body.raw_scores is True or body.use_activation is False
    scores = await score_texts(model, texts, exchange.work, raw_scores=is_raw)
    session = model.open_as(Classifier)
    labels, is_infinity = session.labels, body.raw_scores is not msgspec.UNSET

    def content() -> dict[str, Any]:
        return {
            "id": f"classify-{new_id()}",
            "object": "classify" if is_infinity else "list",
            "created": int(time()),
            "model": model.name,
            "data": label_scores(scores, labels) if is_infinity else _described(scores, labels),
            "usage": usage_of(exchange),
        }

    return await exchange.answer(content, len(scores))


def _described(scores: NDArray[np.float32], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entry of each row of float32[N, labels], as vLLM has it."""
    return [
        {
            "index": index,
            "label": labels[int(row.argmax())],
            "probs": row.tolist(),
            "num_classes": len(row),
        }
        for index, row in enumerate(scores)
    ]


ROUTES = tuple(
    Route("POST", path, classify, OPENAI, "The labels of texts.", ClassifyBody)
    for path in ("/classify", "/v1/classify")
)

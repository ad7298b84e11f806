"""What Baseten's tests of its client need: one server with a model of each kind, and a key."""

from __future__ import annotations

import os
from pathlib import Path

import serving


def install(checkout: Path) -> None:
    """Start the server; the tests read its URL when they are imported."""
    models = ("baseten/embed", "baseten/rerank", "baseten/predict")
    os.environ["PEER_URL"] = serving.url_of(models, key=os.environ["BASETEN_API_KEY"])

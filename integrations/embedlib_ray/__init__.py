"""embedlib on a Ray cluster: loads by all its workers, an actor and a sink for Ray Data, a server.

`embedlib index ... --ray` and `index(..., ray=...)` use `open_workers`. Ray schedules, restarts and
moves data; nothing here does. Names are imported on first use, since Ray takes a second to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedlib_ray.datasets import EmbedlibActor, embed_dataset
    from embedlib_ray.datasink import EmbedlibDatasink
    from embedlib_ray.embedder import RayEmbedder, open_workers
    from embedlib_ray.run import app, serve_models
    from embedlib_ray.serving import Fleet, build_app

__all__ = [
    "EmbedlibActor",
    "EmbedlibDatasink",
    "Fleet",
    "RayEmbedder",
    "app",
    "build_app",
    "embed_dataset",
    "open_workers",
    "serve_models",
]

_MODULES = {
    "datasets": ("EmbedlibActor", "embed_dataset"),
    "datasink": ("EmbedlibDatasink",),
    "run": ("app", "serve_models"),
    "serving": ("Fleet", "build_app"),
    "embedder": ("RayEmbedder", "open_workers"),
}
_LAZY = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

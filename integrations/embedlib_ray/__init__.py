"""embedlib on a Ray cluster: loads by all its workers, an actor and a sink for Ray Data, a server.

`embedlib index ... --ray` and `index(..., ray=...)` use `open_workers`. Ray schedules, restarts and
moves data; nothing here does. Names are imported on first use, since Ray takes a second to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlib.lazy import importer

if TYPE_CHECKING:
    from embedlib_ray.actor import EmbedlibActor
    from embedlib_ray.datasets import embed_dataset
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

__getattr__ = importer(
    __name__,
    {
        ".actor": ("EmbedlibActor",),
        ".datasets": ("embed_dataset",),
        ".datasink": ("EmbedlibDatasink",),
        ".embedder": ("RayEmbedder", "open_workers"),
        ".run": ("app", "serve_models"),
        ".serving": ("Fleet", "build_app"),
    },
)

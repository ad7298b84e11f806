"""An Embedder as a model of mteb, the benchmark of embeddings.

from mteb_embedlib import EmbedlibEncoder

mteb.evaluate(EmbedlibEncoder(embedder), tasks)
"""

from __future__ import annotations

try:
    import mteb  # noqa: F401
except ImportError as error:
    from embedlib.packages.installing import install_line

    raise ImportError(f"mteb is not installed; {install_line('mteb')} ({error})") from error

from mteb_embedlib.encoder import EmbedlibEncoder

__all__ = ["EmbedlibEncoder"]

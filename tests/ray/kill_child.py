"""The driver of a load, in a process of its own, to be killed: `kill_child URL NUM LOG`."""

from __future__ import annotations

import sys
from pathlib import Path

import embedlib
from embedlib_ray import RayEmbedder
from tests.ray.fakes import documents, logging_embedder
from tests.ray.kills import BATCH_ROWS


def main(url: str, num_documents: str, log: str) -> None:
    with RayEmbedder(logging_embedder(Path(log)), num_workers=2) as embedder:
        embedlib.index(
            documents(int(num_documents)),
            url,
            embedder=embedder,
            chunk=False,
            batch_rows=BATCH_ROWS,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

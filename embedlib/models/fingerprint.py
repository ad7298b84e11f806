"""A short text that changes whenever a model's vectors may change."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import blake2b

from embedlib.models.files import ModelFiles
from embedlib.models.weights import weights_digest


def fingerprint(files: ModelFiles, revision: str | None, precision: str) -> str:
    """Return `REVISION:DIGEST`; REVISION is the hub's commit, or "folder".

    The digest covers the weights, the tokenizer, the spec (pooling, prompts, length limit) and the
    precision. Weights of a folder are read once in full; the hub's cache already knows their hash.
    """
    digest = blake2b(digest_size=16)
    digest.update(weights_digest(files).encode())
    digest.update((files.transformer_dir / "tokenizer.json").read_bytes())
    digest.update(json.dumps(asdict(files.spec), sort_keys=True, default=dict).encode())
    digest.update(precision.encode())
    return f"{revision or 'folder'}:{digest.hexdigest()}"

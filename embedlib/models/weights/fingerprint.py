"""The fingerprint: a short string that changes whenever a model's vectors may change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b

from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import list_files, read_file
from embedlib.models.reading.vocabulary_files import vocabulary_files
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.weight_files import weights_digest


def fingerprint(
    files: ModelFiles,
    revision: str | None,
    settings: Mapping[str, object],
    hashes: FileHashes | None = None,
) -> str:
    """Return `REVISION:DIGEST`; REVISION is the hub's commit, or "folder".

    The digest covers the weights, the bytes of every JSON file of the model (so that a new version
    of embedlib keeps the fingerprint), of a vocabulary in the place of tokenizer.json, and the
    settings. The weights are read once in full, unless
    `hashes` already has their digests.

    Args:
        files: the model.
        revision: the hub's commit; None for a local folder.
        settings: all other settings that determine the vectors, JSON values by name.
        hashes: the stored digests of large files; None: only files in the hub's cache are not read.
    """
    digest = blake2b(digest_size=16)
    digest.update(weights_digest(files, hashes or FileHashes()).encode())
    read = {path for folder in files.directories for path in list_files(folder, "*.json")}
    for path in sorted(read.union(vocabulary_files(files.transformer_dir, files.folder))):
        content = read_file(path, files.folder)
        name = os.fsencode(path.relative_to(files.folder).as_posix())
        digest.update(name + f" {len(content)}\n".encode())
        digest.update(content)
    digest.update(json.dumps(dict(settings), sort_keys=True).encode())
    return f"{revision or 'folder'}:{digest.hexdigest()}"

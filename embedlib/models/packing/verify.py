"""Compares every byte of a pack with its index, once for each file."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import BinaryIO

from embedlib.errors import ModelWeightsError
from embedlib.models.reading.pack_file import Entry, Pack, damaged, open_pack
from embedlib.models.weights.file_hashes import READ_BYTES, FileHashes


def verify_pack(path: Path, hashes: FileHashes) -> Pack:
    """Return a pack whose entries have the hashes that its index says.

    A pack is read in full when it is opened for the first time. `hashes` keeps that it was found
    intact for as long as its size, its inode and its times stay the same, as of every large file.

    Raises:
        ModelUnsupportedError: it has another format version.
        ModelWeightsError: it is damaged; the message names the first entry that is.
    """
    pack = open_pack(path)
    if hashes.once(path.resolve(), lambda: _read_all(pack), "#pack") != pack.index_digest:
        raise damaged(path, "it has changed while it was opened")
    return pack


def _read_all(pack: Pack) -> str:
    """Compare all entries, and return the digest of the index."""
    logging.getLogger(__name__).info("%s is opened for the first time and checked", pack.path)
    try:
        with pack.path.open("rb") as stream:
            for name, entry in pack.entries.items():
                if _sha256(stream, entry) != entry.sha256:
                    raise damaged(pack.path, f"{name}: its bytes are not those that were packed")
    except OSError as error:
        raise ModelWeightsError(f"{pack.path}: cannot be read: {error.strerror}") from error
    return pack.index_digest


def _sha256(stream: BinaryIO, entry: Entry) -> str:
    content = hashlib.sha256()
    stream.seek(entry.start)
    left = entry.num_bytes
    while block := stream.read(min(left, READ_BYTES)):
        content.update(block)
        left -= len(block)
    return "" if left else content.hexdigest()  # it ends behind the file

"""Reads the vocabulary of a folder without tokenizer.json, in the files that transformers 4 wrote.

ProsusAI/finbert, allenai/specter and others have no more: vocab.txt, or vocab.json and merges.txt,
or a file of SentencePiece. The class of transformers sets everything else, see `CLASSES`.

Source: `TokenizersBackend.convert_to_native_format` of transformers 5.24; `WordPiece::read_file`
and `BPE::read_file` of tokenizers 0.23; sentencepiece_model.proto of SentencePiece 0.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, normalizers

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.added_tokens import AddedTokens
from embedlib.models.reading.json_files import quote
from embedlib.models.reading.model_file import (
    LFS_POINTER,
    lfs_pointer,
    load_json,
    name_in,
    read_file,
    read_text,
)
from embedlib.models.reading.tokenizer_classes import TokenizerClass
from embedlib.models.reading.tokenizer_json import LONGEST_PIECE, WRITE_JSON, refusing
from embedlib.models.reading.vocabulary_files import VOCABULARIES

UNIGRAM: Final = 1
"""`TrainerSpec.ModelType.UNIGRAM` of SentencePiece."""
NORMAL: Final = 1
"""`ModelProto.SentencePiece.Type.NORMAL`."""
NUM_OWN_PIECES: Final = 3
"""Pieces of a file of SentencePiece in whose place the class has tokens of its own."""


def vocabulary_of(row: TokenizerClass, files: list[Path]) -> list[Path]:
    """Return the files, of these, that make a whole tokenizer with a class; none if one lacks."""
    names = VOCABULARIES.get(row.model, ())
    found = [path for path in files if path.name in names]
    return found if row.ends is not None and len(found) == len(names) else []


def read_vocabulary(paths: list[Path], folder: Path, tokens: AddedTokens) -> Tokenizer:
    """Return the tokenizer with the pieces of a vocabulary, and no step but its map of characters.

    Args:
        paths: the files, as in `VOCABULARIES`.
        folder: the model folder; messages name files relative to it.
        tokens: the special tokens of the folder.

    Raises:
        ModelUnsupportedError: a file is damaged.
    """
    if paths[0].name in VOCABULARIES["BPE"]:
        return _of_byte_pairs(paths, folder)
    read = _of_word_pieces if paths[0].name in VOCABULARIES["WordPiece"] else _of_sentence_pieces
    return read(paths[0], folder, tokens)


def _of_word_pieces(path: Path, folder: Path, tokens: AddedTokens) -> Tokenizer:
    with refusing(name_in(path, folder)):
        pieces = {line.rstrip(): number for number, line in enumerate(_lines(path, folder))}
        unknown = str(tokens.content("unk_token"))
        tokenizer = Tokenizer(models.WordPiece(pieces, unk_token=unknown))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _of_byte_pairs(paths: list[Path], folder: Path) -> Tokenizer:
    vocab, merges = paths
    ids = load_json(vocab, folder)
    name = name_in(merges, folder)
    pairs: list[tuple[str, str]] = []
    with refusing(name):
        for number, line in enumerate(_lines(merges, folder), 1):
            if line.startswith("#version"):
                continue
            pieces = line.removesuffix("\r").split(" ")
            if len(pieces) != 2:
                raise ModelUnsupportedError(
                    f"{name}: line {number} is {quote(line)}; accepted: two pieces with a space "
                    "between"
                )
            pairs.append((pieces[0], pieces[1]))
    with refusing(f"{name_in(vocab, folder)} with {name}"):
        tokenizer = Tokenizer(models.BPE(ids, pairs))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _lines(path: Path, folder: Path) -> list[str]:
    return read_text(path, folder).removesuffix("\n").split("\n")


# --- SentencePiece --------------------------------------------------------------------------------


def _of_sentence_pieces(path: Path, folder: Path, tokens: AddedTokens) -> Tokenizer:
    name = name_in(path, folder)
    pieces: list[tuple[str, float]] = []
    kinds: list[int] = []
    charsmap, algorithm = b"", UNIGRAM
    content = read_file(path, folder)
    if content.startswith(LFS_POINTER):
        raise ModelUnsupportedError(lfs_pointer(path, folder))
    try:
        for field, value in _fields(content):
            if field == 1:  # ModelProto.pieces
                piece = dict(_fields(value))
                pieces.append((piece[1].decode(), struct.unpack("<f", piece[2])[0]))
                kinds.append(piece.get(3, NORMAL))
            elif field == 2:  # ModelProto.trainer_spec, of which 3 is model_type
                algorithm = dict(_fields(value)).get(3, UNIGRAM)
            elif field == 3:  # ModelProto.normalizer_spec, of which 2 is precompiled_charsmap
                charsmap = dict(_fields(value)).get(2, b"")
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error) as error:
        raise ModelUnsupportedError(
            f"{name}: is no file of SentencePiece, or damaged; download it again"
        ) from error
    if algorithm != UNIGRAM:
        raise ModelUnsupportedError(f"{name}: model_type = {algorithm}; accepted: 1 (UNIGRAM)")
    for (text, _score), kind in list(zip(pieces, kinds, strict=True))[NUM_OWN_PIECES:]:
        if kind != NORMAL:
            raise ModelUnsupportedError(
                f"{name}: the piece {quote(text)} has type = {kind}; accepted: 1 (NORMAL), behind "
                "the first three"
            )
    longest = max(pieces, key=lambda piece: len(piece[0]), default=("", 0.0))[0]
    if len(longest) > LONGEST_PIECE:
        raise ModelUnsupportedError(
            f"{name}: has the piece {quote(longest)} of {len(longest)} characters; accepted: up to "
            f"{LONGEST_PIECE}"
        )
    if tokens.extra:
        # Kept by transformers 4, and left out by 5.24.
        raise ModelUnsupportedError(
            f"{name}: the folder names the token {quote(str(tokens.extra[0]))} besides, which "
            f"transformers 4 adds and 5 does not; tokenizer.json says which: {WRITE_JSON}"
        )
    first, last = (
        [(str(tokens.content(key)), 0.0) for key in keys]
        for keys in (("bos_token", "pad_token", "eos_token", "unk_token"), ("mask_token",))
    )
    vocab = [*first, *pieces[NUM_OWN_PIECES:], *last]
    with refusing(name):
        tokenizer = Tokenizer(models.Unigram(vocab, first.index(first[-1]), byte_fallback=False))
        if charsmap:
            tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of a message's fields: int of a varint, else bytes.

    Source: https://protobuf.dev/programming-guides/encoding.

    Raises:
        ValueError, LookupError: it is no message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            num_bytes, at = _varint(message, at)
        else:
            num_bytes = {1: 8, 5: 4}[kind]
        if at + num_bytes > len(message):
            raise ValueError("a field ends behind the message")
        yield key >> 3, message[at : at + num_bytes]
        at += num_bytes


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a place, and the place behind it."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")

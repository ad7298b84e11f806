"""Reads tokenizer.json with the tokenizers library, and checks what that library does not check.

The library raises bare Exceptions, and where its Rust code panics, an exception that is not even
an Exception and prints a backtrace. What is known to panic is refused before it runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, models

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.added_tokens import FLAGS
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.model_file import has_file, missing_file, name_in, read_text
from embedlib.threads.interrupts import is_of_handler

PREFIX: Final = re.compile(r'"continuing_subword_prefix"\s*:\s*"[^"]')
"""Finds a prefix that is not empty."""

MERGES: Final = re.compile(r'"merges"\s*:')

LISTED_VOCAB: Final = re.compile(r'"vocab"\s*:\s*\[')
"""Finds the vocabulary of a Unigram model; those of others are objects."""

LONGEST_PIECE: Final = 4096
"""Characters of a piece of a Unigram model; SentencePiece writes 16 at most if it is not told.

The library keeps the pieces in a tree with a level for every byte, and frees it by recursion: a
piece of a million characters overflows the stack.
Source: tokenizers/src/models/unigram/trie.rs, release 0.23.
"""

WRITE_JSON: Final = "write it with AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
"""The remedy for a folder without tokenizer.json."""

PROBE: Final = "a"
"""A text to try a tokenizer with."""


def is_library_error(error: BaseException) -> bool:
    """Return whether the library raises such an error, other than an interrupt of the program.

    The exception for a panic derives from BaseException, and the module that its class names cannot
    be imported.
    """
    is_panic = type(error).__module__ == "pyo3_runtime"
    return is_panic or (isinstance(error, Exception) and not is_of_handler(error))


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn every error of the tokenizers library into one that names the file, on one line.

    Raises:
        ModelUnsupportedError: the library raised an error, or panicked.
    """
    try:
        yield
    except ModelUnsupportedError:
        raise
    except BaseException as error:
        if not is_library_error(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__  # such as MemoryError
        raise ModelUnsupportedError(f"{name}: cannot be read: {reason:.300}") from error


@dataclass(frozen=True)
class TokenizerJson:
    """A tokenizer.json that the library accepts, and its name in messages."""

    name: str
    tokenizer: Tokenizer
    unigram: Mapping[str, object] = field(default_factory=dict)
    """Options of a Unigram model, if it was read with exact scores; the library hides them."""

    @classmethod
    def load(cls, path: Path, folder: Path, *, exact_scores: bool = False) -> TokenizerJson:
        """Read a tokenizer.json.

        Args:
            path: the file.
            folder: the model folder; messages name the file relative to it.
            exact_scores: read the scores of a Unigram model as transformers reads those of a class
                of its own: see `_read_unigram`.

        Raises:
            ModelUnsupportedError: it is missing or damaged.
        """
        name = name_in(path, folder)
        if not has_file(path, folder):
            raise ModelUnsupportedError(missing_file(path, folder, WRITE_JSON))
        with refusing(name):
            text = read_text(path, folder)
            if exact_scores:
                found = cls(name, *_read_unigram(text, name))
            else:
                found = cls(name, _read(text, name))
            found._check_model()
            for processor in found._processors(state(found.tokenizer.post_processor)):
                found._check_template(processor)
        return found

    def saved_length(self) -> int | None:
        """Return the length that texts were cut to when the file was saved; None: they were not.

        Raises:
            ModelUnsupportedError: they lost their beginnings.
        """
        saved = self.tokenizer.truncation
        if saved is not None and saved["direction"] != "right":
            raise ModelUnsupportedError(
                f"{self.name}: truncation.direction = {saved['direction']!r} is not supported; "
                "accepted: right"
            )
        return None if saved is None else int(saved["max_length"])

    def option(self, key: str) -> object:
        """Return an option of the model."""
        return self.unigram[key] if key in self.unigram else getattr(self.tokenizer.model, key)

    def check_ids(self, tokenizer: Tokenizer, vocab_size: int, *, is_table: bool = False) -> None:
        """Reject a tokenizer that can give an id for which the model has no embedding.

        Args:
            tokenizer: made of this file; tokenizer_config.json may have added tokens.
            vocab_size: rows of the matrix of embeddings.
            is_table: the number is that of the rows in a file of weights, not of config.json.
        """
        limit = f"vocab_size = {vocab_size} of config.json"
        if is_table:
            limit = f"the {vocab_size} rows of the table"
        accepted = f"accepted: less than {limit}"
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        if len(set(vocab.values())) < len(vocab):
            twice = next(
                token for token, number in vocab.items() if tokenizer.id_to_token(number) != token
            )
            raise ModelUnsupportedError(
                f"{self.name}: the token {quote(twice)} has the id {vocab[twice]}, which another "
                "token has too; accepted: an id of its own for every token"
            )
        greatest = max(vocab, key=vocab.__getitem__, default="")
        if vocab and vocab[greatest] >= vocab_size:
            raise ModelUnsupportedError(
                f"{self.name}: the token {quote(greatest)} has the id {vocab[greatest]}; {accepted}"
            )
        for processor in self._processors(state(tokenizer.post_processor)):
            for token, number in _ids_around(processor):
                if number >= vocab_size:
                    raise ModelUnsupportedError(
                        f"{self.name}: post_processor adds {quote(token)} with the id {number}; "
                        f"{accepted}"
                    )

    def _check_model(self) -> None:
        dropout = getattr(self.tokenizer.model, "dropout", None)
        if dropout:
            raise ModelUnsupportedError(
                f"{self.name}: model.dropout = {dropout} gives other ids at every call; accepted: "
                "null"
            )

    def _processors(self, processor: Any) -> Iterator[JsonObject]:
        """Yield a post-processor of the file, or those it consists of."""
        if processor is None:
            return
        if processor["type"] != "Sequence":
            yield JsonObject(f"{self.name}: post_processor", processor)
            return
        for part in processor["processors"]:
            yield from self._processors(part)

    def _check_template(self, processor: JsonObject) -> None:
        """Reject a template with which the library panics, or which is not around one text."""
        if processor.values["type"] != "TemplateProcessing":
            return
        known: Mapping[str, Any] = processor.values["special_tokens"]
        for key in ("single", "pair"):
            for piece in processor.values[key]:
                token = piece.get("SpecialToken", {}).get("id")
                if token is not None and token not in known:
                    raise processor.refuse(
                        "special_tokens", f"ids for {quote(token)}, which {key} names"
                    )
        for token, entry in known.items():
            if len(entry["ids"]) != len(entry["tokens"]):
                raise processor.refuse("special_tokens", f"an id for every token of {quote(token)}")
        texts = [
            piece["Sequence"]["id"] for piece in processor.values["single"] if "Sequence" in piece
        ]
        if texts != ["A"]:
            raise processor.refuse("single", "a template with the text once")


def _ids_around(processor: JsonObject) -> Iterator[tuple[str, int]]:
    """Yield the tokens that a post-processor adds, with their ids."""
    for entry in processor.values.get("special_tokens", {}).values():
        yield from zip(entry["tokens"], entry["ids"], strict=True)
    for key in ("cls", "sep"):
        if key in processor:
            yield processor.values[key]


def state(part: Any) -> Any:
    """Return a normalizer, pre-tokenizer or post-processor as the library writes it, or None."""
    return None if part is None else json.loads(part.__getstate__())


def _read(text: str, name: str) -> Tokenizer:
    """Return the tokenizer of a file that does not make the library panic or crash."""
    if LISTED_VOCAB.search(text):
        _check_pieces(json.loads(text)["model"], name)
    if MERGES.search(text) and PREFIX.search(text):  # else a second reading of 30 MB is not needed
        model = json.loads(text)["model"]
        prefix = model["continuing_subword_prefix"]
        for merge in model.get("merges", ()):
            pieces = merge.split(" ") if isinstance(merge, str) else merge
            if not pieces[-1].startswith(prefix):
                raise ModelUnsupportedError(
                    f"{name}: model.continuing_subword_prefix = {quote(prefix)}, but the second "
                    f"piece of the merge {quote(merge)} does not start with it"
                )
    return Tokenizer.from_str(text)


def _check_pieces(model: Mapping[str, Any], name: str) -> None:
    """Refuse the pieces of a Unigram model with which the library crashes when it is freed."""
    vocab = model["vocab"]
    for piece, _score in vocab if isinstance(vocab, list) else ():
        if len(piece) > LONGEST_PIECE:
            raise ModelUnsupportedError(
                f"{name}: model.vocab has the piece {quote(piece)} of {len(piece)} characters; "
                f"accepted: up to {LONGEST_PIECE}"
            )


def _read_unigram(text: str, name: str) -> tuple[Tokenizer, Mapping[str, object]]:
    """Return a tokenizer with the scores as Python reads them, and the options of its model.

    The library's own reader of JSON rounds some numbers to a neighbour of the nearest one; then two
    ways of splitting a word whose scores are equal may swap.
    """
    content = json.loads(text)
    model = content["model"]
    if not isinstance(model["vocab"], list):
        return Tokenizer.from_str(text), {}
    _check_pieces(model, name)
    options = {"unk_id": model.get("unk_id"), "byte_fallback": model.get("byte_fallback", False)}
    tokens = content.get("added_tokens", [])
    stub = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]}
    tokenizer = Tokenizer.from_str(json.dumps({**content, "model": stub, "added_tokens": []}))
    pieces = [(piece, score) for piece, score in model["vocab"]]
    tokenizer.model = models.Unigram(pieces, options["unk_id"], options["byte_fallback"])
    tokenizer.add_tokens(
        [
            AddedToken(**{key: token[key] for key in ("content", *FLAGS) if key in token})
            for token in tokens
        ]
    )
    return tokenizer, options

"""Texts to token ids: whole, or of a static model by parts that were seen before.

A static model spends nearly all its time in the tokenizer, and texts repeat their words. Where a
tokenizer divides texts at spaces and changes nothing across one, the ids of a text are those of
its parts, one behind the other, and each part is tokenized once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import tokenizers

from embedlib.batching.tokenizing.refusals import explain
from embedlib.errors import ConfigError
from embedlib.models.reading.tokenizer_build import steps_of
from embedlib.models.reading.tokenizer_json import is_library_error

DIVIDING: Final = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
"""Pre-tokenizers that end a word at every space, and drop the space."""
CHARACTERWISE: Final = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
)
"""Normalizers that change no letter for what stands beyond a space, and keep the space."""
MAX_LETTERS: Final = 1 << 20
"""Of all parts that are kept: some 50,000 words, which take 15 MB."""
LETTERS_OF_A_PART: Final = 16
"""What a part counts besides its own letters: it takes memory of its own."""
SHORT_CHARACTERS: Final = 1024
"""`Tokenizer.encode` holds the interpreter's lock, 0.3 ms for so many characters and 6 s for 8
million, in which no other thread computes or answers. The thread pool, which holds none, is not
worth waking for less. Measured with tokenizers 0.23 and MiniLM's tokenizer."""
GROUP_CHARACTERS: Final = 1 << 20
"""Of texts that are tokenized at a time, which takes the library 40 to 150 bytes for each."""
PARTS_OF_A_TEXT: Final = 64
"""New parts that are tokenized as one text; a core takes one of these texts at a time."""


class TokenIds:
    """Makes the token ids of texts. Any number of threads may call it."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, keeps_parts: bool = False) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: from `load_tokenizer`.
            keeps_parts: look up the parts of texts, if this tokenizer divides texts at spaces; it
                must add no special tokens then.
        """
        self._tokenizer = tokenizer
        self.keeps_parts = keeps_parts and divides_at_spaces(tokenizer)
        self._known: dict[str, bytes] = {"": b""}
        self._num_letters = 0

    def __call__(
        self, texts: Sequence[str], prefix: str, first_row: int, *, add_special_tokens: bool = True
    ) -> Iterator[list[int]]:
        """Yield the ids of each text behind a prefix; `first_row` is for messages.

        Raises:
            ConfigError: the tokenizer has padding or truncation now.
            InputError: a text is not a str, or has a lone surrogate.
        """
        if self.keeps_parts:
            for row in self.packed(texts, prefix, first_row):
                yield np.frombuffer(row, np.int32).tolist()
            return
        check_whole(self._tokenizer)
        prompted = _prompted(texts, prefix, first_row)
        try:
            yield from encode_each(self._tokenizer, prompted, add_special_tokens=add_special_tokens)
        except BaseException as error:  # tokenizers raises bare Exception and TypeError
            if not is_library_error(error):
                raise
            raise explain(texts, first_row, error) from error

    def packed(self, texts: Sequence[str], prefix: str, first_row: int) -> list[bytes]:
        """Return the ids of texts behind a prefix, each text's as the bytes of int32.

        Raises:
            ConfigError: the tokenizer has padding or truncation now.
            InputError: a text is not a str, or has a lone surrogate.
        """
        check_whole(self._tokenizer)
        divided = [
            text.replace("\n", " ").split(" ") for text in _prompted(texts, prefix, first_row)
        ]
        # Another thread may start a new dict meanwhile; this one keeps all that is in it.
        known = self._known
        unseen = {part for parts in divided for part in parts if part not in known}
        if unseen:
            try:
                known.update(self._of_parts(list(unseen)))
            except BaseException as error:  # tokenizers raises bare Exception and TypeError
                if not is_library_error(error):
                    raise
                raise explain(texts, first_row, error) from error
            self._num_letters += sum(map(len, unseen)) + LETTERS_OF_A_PART * len(unseen)
            if self._num_letters > MAX_LETTERS:
                self._known, self._num_letters = {"": b""}, 0
        ids_of = known.__getitem__
        return [b"".join(map(ids_of, parts)) for parts in divided]

    def _of_parts(self, parts: list[str]) -> Iterator[tuple[str, bytes]]:
        """Yield parts and their ids, of `GROUP_CHARACTERS` at a time."""
        for group in _groups(parts):
            yield from self._of_group(group)

    def _of_group(self, parts: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield parts and their ids; many are tokenized as one text, in a quarter of the time."""
        if len(parts) < PARTS_OF_A_TEXT:
            groups = [parts]
            many = [encode_one(self._tokenizer, " ".join(parts), add_special_tokens=False)]
        else:
            step = PARTS_OF_A_TEXT
            groups = [parts[first : first + step] for first in range(0, len(parts), step)]
            texts = [" ".join(group) for group in groups]
            many = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        for group, found in zip(groups, many, strict=True):
            ids = array("i", found.ids).tobytes()
            starts = [start for start, _ in found.offsets]
            ends = accumulate([len(part) + 1 for part in group])
            places = [0, *(4 * bisect_left(starts, end) for end in ends)]
            yield from zip(group, [ids[a:b] for a, b in pairwise(places)], strict=True)


def encode_one(
    tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool
) -> tokenizers.Encoding:
    """Return the tokens of a text; other threads go on meanwhile."""
    if len(text) <= SHORT_CHARACTERS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    [found] = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
    return found


def encode_each(
    tokenizer: tokenizers.Tokenizer, texts: Sequence[str], *, add_special_tokens: bool
) -> Iterator[list[int]]:
    """Yield the ids of each text; other threads go on meanwhile, and memory is bounded."""
    num_characters = sum(map(len, texts))
    if len(texts) <= 2 and num_characters <= SHORT_CHARACTERS:
        for text in texts:
            yield tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return
    groups = [texts] if num_characters <= GROUP_CHARACTERS else _groups(texts)
    for group in groups:
        for found in tokenizer.encode_batch_fast(group, add_special_tokens=add_special_tokens):
            yield found.ids


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide texts into groups of at most `GROUP_CHARACTERS`; a text with more is a group."""
    start = num_characters = 0
    for index, text in enumerate(texts):
        if num_characters + len(text) > GROUP_CHARACTERS and index > start:
            yield texts[start:index]
            start, num_characters = index, 0
        num_characters += len(text)
    yield texts[start:]


def check_whole(tokenizer: tokenizers.Tokenizer) -> None:
    """Check that a tokenizer, which a caller can reach, still gives all tokens and no others.

    Raises:
        ConfigError: it has padding or truncation.
    """
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        raise ConfigError(
            "the model's tokenizer was given padding or truncation, which would change what is "
            "computed; call its no_padding() and no_truncation(), and configure a copy of it: "
            "copy.deepcopy(embedder.tokenizer)"
        )


def _prompted(texts: Sequence[str], prefix: str, first_row: int) -> Sequence[str]:
    for text in texts:
        if not isinstance(text, str):  # tokenizers would accept a pair of str
            raise explain(texts, first_row, TypeError("not a str"))
    return [prefix + text for text in texts] if prefix else texts


def divides_at_spaces(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return whether the ids of a text are those of its parts between spaces and line ends.

    A token that takes the spaces beside it (`lstrip`, as MPNet's `<mask>`, or `rstrip`) reaches
    across one: the part before it would get its id.
    """
    words: list[Any] = steps_of(tokenizer.pre_tokenizer)
    letters: list[Any] = steps_of(tokenizer.normalizer)
    tokens = tokenizer.get_added_tokens_decoder().values()
    return (
        bool(words)
        and all(step["type"] in DIVIDING for step in words)
        and all(step["type"] in CHARACTERWISE for step in letters)
        and all(token.content.split() == [token.content] for token in tokens)
        and not any(token.lstrip or token.rstrip for token in tokens)
        and getattr(tokenizer.model, "dropout", None) is None
    )

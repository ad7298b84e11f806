"""Texts to token ids: whole, or of a static model by parts that were seen before.

A static model spends nearly all its time in the tokenizer, and texts repeat their words. Where a
tokenizer divides texts at spaces and changes nothing across one, the ids of a text are those of
its parts, one behind the other, and each part is tokenized once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import tokenizers

from embedlib.batching.refusals import explain
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
        self._keeps_parts = keeps_parts and divides_at_spaces(tokenizer)
        self._known: dict[str, Sequence[int]] = {"": ()}
        self._num_letters = 0

    def __call__(
        self, texts: Sequence[str], prefix: str, first_row: int, *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of texts behind a prefix; `first_row` is for messages.

        Raises:
            InputError: a text is not a str, or has a lone surrogate.
        """
        for text in texts:
            if not isinstance(text, str):  # tokenizers would accept a pair of str
                raise explain(texts, first_row, TypeError("not a str"))
        try:
            prompted = [prefix + text for text in texts] if prefix else list(texts)
            if self._keeps_parts:
                return self._look_up(prompted)
            if len(prompted) == 1:  # not worth waking the thread pool
                found = self._tokenizer.encode(prompted[0], add_special_tokens=add_special_tokens)
                return [found.ids]
            many = self._tokenizer.encode_batch_fast(
                prompted, add_special_tokens=add_special_tokens
            )
            return [item.ids for item in many]
        except BaseException as error:  # tokenizers raises bare Exception and TypeError
            if not is_library_error(error):
                raise
            raise explain(texts, first_row, error) from error

    def _look_up(self, texts: Sequence[str]) -> list[list[int]]:
        divided = [text.replace("\n", " ").split(" ") for text in texts]
        # Another thread may start a new dict meanwhile; this one keeps all that is in it.
        known = self._known
        unseen = list(set(chain.from_iterable(divided)).difference(known))
        if unseen:
            known.update(zip(unseen, self._of_parts(unseen), strict=True))
            self._num_letters += sum(map(len, unseen)) + LETTERS_OF_A_PART * len(unseen)
            if self._num_letters > MAX_LETTERS:
                self._known, self._num_letters = {"": ()}, 0
        ids_of = known.__getitem__
        return [list(chain.from_iterable(map(ids_of, parts))) for parts in divided]

    def _of_parts(self, parts: Sequence[str]) -> list[list[int]]:
        """Return the ids of parts, tokenized as one text, which takes a quarter of the time."""
        found = self._tokenizer.encode(" ".join(parts), add_special_tokens=False)
        ids = found.ids
        starts = [start for start, _ in found.offsets]
        ends = accumulate([len(part) + 1 for part in parts])
        return [ids[a:b] for a, b in pairwise([0, *(bisect_left(starts, end) for end in ends)])]


def divides_at_spaces(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return whether the ids of a text are those of its parts between spaces and line ends."""
    words: list[Any] = steps_of(tokenizer.pre_tokenizer)
    letters: list[Any] = steps_of(tokenizer.normalizer)
    tokens = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return (
        bool(words)
        and all(step["type"] in DIVIDING for step in words)
        and all(step["type"] in CHARACTERWISE for step in letters)
        and all(token.split() == [token] for token in tokens)
        and getattr(tokenizer.model, "dropout", None) is None
    )

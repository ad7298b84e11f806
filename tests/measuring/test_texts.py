from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedlib.errors import SourceError
from embedlib.measuring.texts import (
    QUERIES,
    docstring_pieces,
    docstrings,
    read_lines,
    texts_of_about,
)
from embedlib.testing.engine import byte_tokenizer


def test_docstrings_are_the_same_each_time_and_differ_from_one_another() -> None:
    texts = docstrings(60)
    assert len(set(texts)) == 60
    assert docstrings(40) == texts[:40]
    assert all(len(text) >= 20 for text in texts)
    assert len(set(QUERIES)) == len(QUERIES)


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\n  \ntwo ü\nthree\n", encoding="utf-8")
    assert read_lines(path, 2) == ["one", "two ü"]
    assert read_lines(path, 9) == read_lines(path) == ["one", "two ü", "three"]


def test_lines_are_divided_and_marked_as_those_of_other_commands(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeffone\r\na\fb\rc\u2028d\n".encode())
    assert read_lines(path, 9) == ["one", "a\fb\rc\u2028d"]
    path.write_bytes("\ufeff\none\n".encode())
    assert read_lines(path, 9) == ["one"], "the mark of Windows is no text"


@pytest.mark.parametrize(("content", "message"), [(b" \n", "no text"), (b"\xff\n", "UTF-8")])
def test_a_file_without_texts(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=message):
        read_lines(path, 9)
    with pytest.raises(SourceError, match="no-such-file"):
        read_lines(tmp_path / "no-such-file", 9)


def test_texts_of_about_a_number_of_tokens() -> None:
    tokenizer = byte_tokenizer()
    texts = texts_of_about(40, 300, tokenizer)
    lengths = [len(tokenizer.encode(text).ids) for text in texts]
    assert len(texts) == 300
    assert texts == texts_of_about(40, 300, tokenizer)
    assert min(lengths) >= 10
    assert max(lengths) <= 80
    assert 38 < sum(lengths) / 300 < 42
    assert len(set(lengths)) > 20, "of one length, no batch would have padding"


def test_a_text_may_be_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [f"{letter} " * 50 for letter in "abcdefgh"]
    monkeypatch.setattr("embedlib.measuring.texts._blocks", lambda: iter(blocks))
    tokenizer = byte_tokenizer()
    texts = texts_of_about(250, 2, tokenizer)
    lengths = [len(tokenizer.encode(text).ids) for text in texts]
    assert len(texts) == 2
    assert min(lengths) > 100, "a block has 100 tokens"
    drawn = np.random.default_rng(0).normal(250, 250 / 3, 2).round()
    assert [len(text.replace("\n\n", "")) for text in texts] == drawn.tolist()
    assert all(text in "\n\n".join(blocks) for text in texts)
    assert texts[0].startswith("a"), "the second goes on where the first has ended, or behind"
    assert not texts[1].startswith("a")
    assert texts_of_about(9000, 2, tokenizer) == []


def test_pieces_are_all_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = ["abcdefghij", "klmnopqrstu"]
    monkeypatch.setattr("embedlib.measuring.texts._blocks", lambda: iter(blocks))
    pieces = ["abcde", "fghij", "klmno", "pqrst"]
    assert docstring_pieces(9, 5, byte_tokenizer()) == pieces
    assert docstring_pieces(3, 5, byte_tokenizer()) == pieces[:3]

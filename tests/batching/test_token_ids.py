"""Token ids by parts that are looked up: those of the whole text."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import Mock

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from embedlib.batching.tokenizing import token_ids
from embedlib.batching.tokenizing.pair_forms import _encode_all
from embedlib.batching.tokenizing.token_ids import (
    SHORT_CHARACTERS,
    TokenIds,
    divides_at_spaces,
    encode_one,
)
from embedlib.errors import ConfigError, InputError
from embedlib.testing.models.tokenizers import build_tokenizer

LETTERS = (
    *"abcdefghijklmnopqrstuvwxyzABCÉßİΣ",
    *" \n\t\r   .,;'-!?/0123456789",
    *"\x00\x0b\x0c\x1c\x1f\x85\xa0\u3000\u2028\u200b\u0301\u0345\ufffd世界ﬁ한ก🙂\u00a8",
    *("[MASK]", "[UNK] ", " [SEP]", "the ", "city", "runs\n", "##s"),
)


def _bert() -> Tokenizer:
    tokenizer, _ = build_tokenizer("bert")
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _whole(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [item.ids for item in tokenizer.encode_batch(texts, add_special_tokens=False)]


class Lists(TokenIds):
    """Gives the ids as lists, not one after the other."""

    def __call__(self, *given: Any, **options: Any) -> Any:
        return list(super().__call__(*given, **options))


def _drawn(seed: int, count: int) -> list[str]:
    dice = random.Random(seed)
    return ["".join(dice.choices(LETTERS, k=dice.randrange(60))) for _ in range(count)]


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        normalizers.BertNormalizer(clean_text=False, strip_accents=True, lowercase=True),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    ],
)
@pytest.mark.parametrize("words", [None, pre_tokenizers.Whitespace()])
def test_ids_of_parts_are_those_of_the_whole_text(
    normalizer: normalizers.Normalizer | None, words: pre_tokenizers.PreTokenizer | None
) -> None:
    tokenizer = _bert()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if words is not None:
        tokenizer.pre_tokenizer = words
    assert divides_at_spaces(tokenizer)
    encode = Lists(tokenizer, keeps_parts=True)
    texts = _drawn(0, 500)
    expected = _whole(tokenizer, texts)
    assert encode(texts, "", 0) == expected
    assert encode(texts, "", 0) == expected  # all of them are known now
    assert encode(texts[:1], "", 0) == expected[:1]
    assert encode(texts, "the c", 0) == _whole(tokenizer, [f"the c{text}" for text in texts])


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = _bert()
    encode = Lists(tokenizer, keeps_parts=True)
    monkeypatch.setattr(token_ids, "MAX_LETTERS", 400)
    for text in _drawn(1, 200):
        assert encode([text], "", 0) == _whole(tokenizer, [text])
        assert sum(map(len, encode._known)) <= 400
    assert encode(["the city " * 1000], "", 0) == _whole(tokenizer, ["the city " * 1000])


def test_a_tokenizer_that_looks_beyond_spaces_gets_whole_texts() -> None:
    tokenizer = _bert()
    tokenizer.add_tokens([AddedToken("the city")])
    assert not divides_at_spaces(tokenizer)
    assert Lists(tokenizer, keeps_parts=True)(["see the city"], "", 0) == _whole(
        tokenizer, ["see the city"]
    )
    for flag in ("lstrip", "rstrip"):
        other = _bert()
        other.add_special_tokens([AddedToken("<blank>", normalized=False, **{flag: True})])
        assert not divides_at_spaces(other)
        encode = Lists(other, keeps_parts=True)
        for texts in (["see <blank> city", "<blank> city see"], ["see city"], ["<blank>"]):
            assert encode(texts, "", 0) == _whole(other, texts)
    for change in (
        {"pre_tokenizer": pre_tokenizers.Metaspace()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel()},
        {"normalizer": normalizers.Replace(" ", "_")},
        {"normalizer": normalizers.Prepend("_")},
    ):
        other = _bert()
        for name, part in change.items():
            setattr(other, name, part)
        assert not divides_at_spaces(other)
    bare = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    assert not divides_at_spaces(bare)


def test_a_text_that_the_library_does_not_take_is_named_by_its_row() -> None:
    encode = Lists(_bert(), keeps_parts=True)
    with pytest.raises(InputError, match="7"):
        encode(["the city", "the \ud800 city"], "", 6)
    with pytest.raises(InputError, match="6"):
        encode([7], "", 6)  # type: ignore[list-item]
    assert encode(["the city"], "", 0)[0]


def test_an_interrupt_is_no_fault_of_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Lists(_bert(), keeps_parts=True)
    monkeypatch.setattr(encode, "_of_parts", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        encode(["the city"], "", 0)


@pytest.mark.parametrize("keeps_parts", [False, True])
@pytest.mark.parametrize("texts", [["the city"], ["the city", "the"]])
def test_a_tokenizer_that_a_caller_has_configured_is_refused(
    keeps_parts: bool, texts: list[str]
) -> None:
    tokenizer = _bert()
    encode = Lists(tokenizer, keeps_parts=keeps_parts)
    ids = encode(texts, "", 0)
    tokenizer.enable_padding(length=16)
    with pytest.raises(ConfigError, match=r"no_padding\(\).*copy\.deepcopy\(embedder\.tokenizer\)"):
        encode(texts, "", 0)
    tokenizer.no_padding()
    tokenizer.enable_truncation(1)
    with pytest.raises(ConfigError, match=r"no_truncation\(\)"):
        encode(texts, "", 0)
    tokenizer.no_truncation()
    assert encode(texts, "", 0) == ids


class HeldLock:
    """A tokenizer whose `encode`, which holds the interpreter's lock, takes short texts alone."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> Any:
        assert len(text) <= SHORT_CHARACTERS, "other threads wait for a long text"
        return self._tokenizer.encode(text, **options)


@pytest.mark.parametrize("text", ["the city", "the city " * SHORT_CHARACTERS, "x" * 5000])
def test_a_long_text_lets_other_threads_go_on(text: str) -> None:
    tokenizer = _bert()
    held: Any = HeldLock(tokenizer)
    [whole] = _whole(tokenizer, [text])
    assert Lists(held)([text], "", 0, add_special_tokens=False) == [whole]
    assert Lists(held)([""], text, 0, add_special_tokens=False) == [whole]
    assert encode_one(held, text, add_special_tokens=False).ids == whole
    assert _encode_all(held, [text, "the"]) == _whole(tokenizer, [text, "the"])
    by_parts = Lists(tokenizer, keeps_parts=True)
    by_parts._tokenizer = held
    assert by_parts([text], "", 0) == [whole]


@pytest.mark.parametrize("most", [1, 12, 40, 10_000])
def test_many_texts_are_tokenized_in_groups(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = _bert()
    groups: list[int] = []

    class Watched(HeldLock):
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            assert sum(map(len, texts)) <= most or len(texts) == 1
            groups.append(len(texts))
            return self._tokenizer.encode_batch_fast(texts, **options)

    monkeypatch.setattr(token_ids, "GROUP_CHARACTERS", most)
    texts = ["", *_drawn(2, 40), "the city " * 9]
    watched: Any = Watched(tokenizer)
    assert Lists(watched)(texts, "", 0, add_special_tokens=False) == _whole(tokenizer, texts)
    assert sum(groups) == len(texts)


@pytest.mark.parametrize("most", [1, 12, 10_000])
def test_parts_are_tokenized_in_groups(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = _bert()
    sent: list[int] = []

    class Watched(HeldLock):
        def encode(self, text: str, **options: Any) -> Any:
            sent.append(len(text))
            return self._tokenizer.encode(text, **options)

    monkeypatch.setattr(token_ids, "GROUP_CHARACTERS", most)
    encode = Lists(tokenizer, keeps_parts=True)
    watched: Any = Watched(tokenizer)
    encode._tokenizer = watched
    texts = ["the city runs", "a small city", "over the river"]
    assert encode(texts, "", 0) == _whole(tokenizer, texts)
    assert (len(sent) > 1) == (most < 10_000)

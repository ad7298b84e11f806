"""Small tokenizers of each kind, built in code, for the tiny models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
SIGNS: Final = "0123456789.,:;!?'\"()-/é"
FOREIGN: Final = "你好世界中文日本語שלוםعربي"
WORDS: Final = (
    "the", "of", "and", "to", "in", "is", "it", "for", "on", "with", "that", "this", "are", "not",
    "query", "passage", "search", "text", "word", "words", "vector", "model", "token", "tokens",
    "data", "base", "river", "runs", "through", "city", "small", "large", "quick", "brown", "fox",
    "jumps", "over", "lazy", "dog", "hello", "world", "represent", "sentence",
)  # fmt: skip
QWEN2_PIECES: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Source: tokenizer.json of Qwen2 and Qwen3; `Qwen2Converter` in transformers."""
BERT_SPECIAL: Final[Mapping[str, str]] = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_SPECIAL: Final[Mapping[str, str]] = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}
PIECES: Final = ("ing", "ed", "er", "es", "ly", "ion", "al")


def build_tokenizer(kind: str) -> tuple[Tokenizer, dict[str, Any]]:
    """Return a tokenizer and the special tokens for tokenizer_config.json.

    Args:
        kind: a key of `TOKENIZERS`.
    """
    return TOKENIZERS[kind]()


def _bert(lowercase: bool) -> tuple[Tokenizer, dict[str, Any]]:
    """[CLS] text [SEP], as in BERT."""
    return _word_piece(BERT_SPECIAL, lowercase)


def _late() -> tuple[Tokenizer, dict[str, Any]]:
    """BERT's, with markers in the vocabulary, and with those that PyLate adds."""
    tokenizer, config = _word_piece(BERT_SPECIAL, lowercase=True, others=("[unused0]", "[unused1]"))
    # As `ColBERT` of PyLate adds them: normalized, so that they match no text here.
    tokenizer.add_tokens(["[Q] ", "[D] "])
    return tokenizer, config


def _mpnet() -> tuple[Tokenizer, dict[str, Any]]:
    """<s> text </s> with BERT's pieces, as in MPNet; the padding id is 1."""
    special = {
        "cls_token": "<s>",
        "pad_token": "<pad>",
        "sep_token": "</s>",
        "unk_token": "[UNK]",
        "mask_token": "<mask>",
    }
    return _word_piece(special, lowercase=True)


def _word_piece(
    special: Mapping[str, str], lowercase: bool, others: tuple[str, ...] = ()
) -> tuple[Tokenizer, dict[str, Any]]:
    """Return BERT's tokenizer with these special tokens, which get the first ids."""
    pieces = [*special.values(), *others, *LETTERS, *SIGNS, *FOREIGN, *WORDS]
    pieces += [f"##{piece}" for piece in (*LETTERS, *SIGNS, *FOREIGN, *PIECES)]
    vocab = _numbered(pieces)
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    between = () if special["cls_token"] == "[CLS]" else (special["sep_token"],)
    tokenizer.post_processor = _ends(vocab, special["cls_token"], special["sep_token"], between)
    tokenizer.add_special_tokens(list(special.values()))
    # Saved models contain such settings; a reader has to clear them.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer, {**special, "do_lower_case": lowercase}


def _roberta() -> tuple[Tokenizer, dict[str, Any]]:
    """<s> text </s> with byte-level BPE, as in RoBERTa."""
    special = dict(ROBERTA_SPECIAL)
    tokenizer, vocab = _byte_pairs(list(dict.fromkeys(special.values())))
    # Positional arguments, because releases of tokenizers have renamed them.
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"])
    )
    return tokenizer, special


def _begin() -> tuple[Tokenizer, dict[str, Any]]:
    """A token before the text, with byte-level BPE, as in Llama 3."""
    special = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    tokenizer, vocab = _byte_pairs(["<|begin|>", "<|end|>"])
    tokenizer.post_processor = _ends(vocab, "<|begin|>", None, ("<|begin|>",))
    return tokenizer, special


def _end() -> tuple[Tokenizer, dict[str, Any]]:
    """A token after the text, with byte-level BPE, as in Qwen3-Embedding."""
    special = {"eos_token": "<|end|>", "pad_token": "<|end|>"}
    tokenizer, vocab = _byte_pairs(["<|end|>"])
    tokenizer.post_processor = _ends(vocab, None, "<|end|>")
    return tokenizer, special


def _chat() -> tuple[Tokenizer, dict[str, Any]]:
    """Chat tokens with byte-level BPE, and no tokens around a text, as in Qwen3."""
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer, _ = _byte_pairs(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
        (
            *(*WORDS, "yes", "no", "system", "user", "assistant", "document", "relevance"),
            # A punctuation mark and the line break after it are one token.
            *(f"{sign}Ċ" for sign in ".?!"),
        ),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer, special


def _xlm_roberta() -> tuple[Tokenizer, dict[str, Any]]:
    """<s> text </s> with SentencePiece, as in XLM-RoBERTa."""
    special = dict(ROBERTA_SPECIAL)
    tokenizer, vocab = _unigram(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.post_processor = _ends(vocab, "<s>", "</s>", ("</s>",), second_type=0)
    return tokenizer, special


def _t5() -> tuple[Tokenizer, dict[str, Any]]:
    """text </s> with SentencePiece, as in T5."""
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer, vocab = _unigram(["<pad>", "</s>", "<unk>"], ["<extra_id_0>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.post_processor = _ends(vocab, None, "</s>", second_type=0)
    return tokenizer, special | {"extra_ids": 0}


def _mistral() -> tuple[Tokenizer, dict[str, Any]]:
    """<s> text </s> with SentencePiece, as in e5-mistral."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    tokenizer, vocab = _unigram(["<unk>", "<s>", "</s>"], [])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.post_processor = _ends(vocab, "<s>", "</s>", ("<s>",))
    return tokenizer, special | {"add_bos_token": True, "add_eos_token": True}


def _gemma() -> tuple[Tokenizer, dict[str, Any]]:
    """<bos> text <eos> with BPE and ▁ for a space, as in EmbeddingGemma."""
    special = {
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "bos_token": "<bos>",
        "unk_token": "<unk>",
    }
    merges = _merges(WORDS, space="▁")
    letters = [*LETTERS, *LETTERS.upper(), *SIGNS, *FOREIGN]
    vocab = _numbered([*special.values(), "▁", *letters, *map("".join, merges)])
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = _ends(vocab, "<bos>", "<eos>", ("<bos>",))
    tokenizer.add_special_tokens(list(special.values()))
    return tokenizer, special | {"add_bos_token": True, "add_eos_token": True}


TOKENIZERS: Final[Mapping[str, Callable[[], tuple[Tokenizer, dict[str, Any]]]]] = {
    "bert": lambda: _bert(lowercase=True),
    "bert-cased": lambda: _bert(lowercase=False),
    "late": _late,
    "mpnet": _mpnet,
    "roberta": _roberta,
    "xlm-roberta": _xlm_roberta,
    "t5": _t5,
    "mistral": _mistral,
    "gemma": _gemma,
    "begin": _begin,
    "end": _end,
    "chat": _chat,
}
"""Builders by kind; each returns a tokenizer and its special tokens."""


def _byte_pairs(
    special: list[str], words: tuple[str, ...] = WORDS
) -> tuple[Tokenizer, dict[str, int]]:
    """Return byte-level BPE whose merges form the words, with and without a leading space."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(words, space="Ġ")
    vocab = _numbered([*special, *alphabet, *map("".join, merges)])
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    return tokenizer, vocab


def _merges(words: tuple[str, ...], space: str) -> list[tuple[str, str]]:
    """Return the merges that form the words, with and without the sign for a leading space."""
    # Earlier merges take precedence, so a space joins its word before the letters join each other.
    spellings = (*(f"{space}{word}" for word in words), *words)
    merges = [(word[:end], word[end]) for word in spellings for end in range(1, len(word))]
    return list(dict.fromkeys(merges))


def _unigram(first: list[str], last: list[str]) -> tuple[Tokenizer, dict[str, int]]:
    """Return a SentencePiece-like model of words and letters; longer pieces score higher."""
    pieces = [*first, "▁", *LETTERS, *LETTERS.upper(), *SIGNS, *FOREIGN, *PIECES]
    pieces += [f"▁{word}" for word in WORDS]
    pieces = list(dict.fromkeys(pieces + last))
    scores = [(piece, 0.0 if piece in first else -8.0 / len(piece)) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=first.index("<unk>")))
    tokenizer.add_special_tokens(first + last)
    return tokenizer, _numbered(pieces)


def _ends(
    vocab: Mapping[str, int],
    first: str | None,
    last: str | None,
    between: tuple[str, ...] = (),
    second_type: int = 1,
) -> processors.TemplateProcessing:
    """Return the post-processor that adds special tokens around a text or a pair of texts.

    Args:
        vocab: tokens to ids.
        first: the token before the first text.
        last: the token after each text.
        between: the tokens before the second text.
        second_type: type id of the second text's tokens.
    """
    before = [] if first is None else [first]
    after = [] if last is None else [last]
    second = [f"{piece}:{second_type}" for piece in (*between, "$B", *after)]
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *second],
        special_tokens=[(token, vocab[token]) for token in before + after],
    )


def _numbered(pieces: list[str]) -> dict[str, int]:
    """Return pieces with their ids; of a duplicate, the first one counts."""
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}

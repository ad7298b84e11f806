"""The tokenizers of the seeded models: small ones, trained on the documentation of Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from embedlib.measuring.texts import docstrings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenizerKind = Literal["word-piece", "byte-pairs-end", "byte-pairs-both", "byte-pairs-roberta"]

TRAINING_TEXTS: Final = 2000
"""Enough for 8,192 pieces, and a few seconds."""


def _word_piece(vocab_size: int) -> tuple[Tokenizer, dict[str, Any]]:
    """Return BERT's kind of tokenizer: [CLS] text [SEP]."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    words = Counter(
        word
        for text in docstrings(TRAINING_TEXTS)
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
    )
    pieces = [*special.values(), *_pieces(words, vocab_size - len(special))]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(special.values()))
    _surround(tokenizer, "[CLS]", "[SEP]")
    return tokenizer, special


def _pieces(words: Counter[str], count: int) -> list[str]:
    """Return the letters and the most frequent words; a rare word is spelled in letters.

    Not by the library's trainer: from the same texts it makes other pieces at each call.
    """
    letters = sorted(set("".join(words)))
    frequent = sorted(words, key=lambda word: (-words[word], word))
    pieces = dict.fromkeys([*letters, *(f"##{letter}" for letter in letters), *frequent])
    return list(pieces)[:count]


def _byte_pairs(
    vocab_size: int, special: dict[str, Any], first: str | None, last: str
) -> tuple[Tokenizer, dict[str, Any]]:
    """Return byte-level BPE, as in GPT-2, with these tokens around a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(docstrings(TRAINING_TEXTS), trainer)
    _surround(tokenizer, first, last)
    return tokenizer, special


def _surround(tokenizer: Tokenizer, first: str | None, last: str) -> None:
    """Put special tokens around a text, and around a pair of texts."""
    from tokenizers import processors

    before = [] if first is None else [first]
    # BERT has a second type of token for the second text; the other models have one type.
    kind = 1 if first == "[CLS]" else 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", last],
        pair=[*before, "$A", last, f"$B:{kind}", f"{last}:{kind}"],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in [*before, last]],
    )


_MISTRAL: Final = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_ROBERTA: Final = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>"}

TOKENIZERS: Final[Mapping[TokenizerKind, Callable[[int], tuple[Tokenizer, dict[str, Any]]]]] = {
    "word-piece": _word_piece,
    # As in Qwen3-Embedding.
    "byte-pairs-end": lambda size: _byte_pairs(
        size,
        {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
        None,
        "<|endoftext|>",
    ),
    "byte-pairs-both": lambda size: _byte_pairs(
        size, {**_MISTRAL, "pad_token": "</s>"}, "<s>", "</s>"
    ),
    # The ids of XLM-RoBERTa: its padding token is 1, and positions count from 2.
    "byte-pairs-roberta": lambda size: _byte_pairs(
        size,
        {**_ROBERTA, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        "<s>",
        "</s>",
    ),
}
"""Each returns a tokenizer of at most so many pieces, and its special tokens by their roles."""

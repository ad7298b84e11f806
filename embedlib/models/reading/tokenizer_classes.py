"""The tokenizer classes of transformers 5: which one it takes, and what that one sets itself.

Such a class takes vocabulary and merges from tokenizer.json and sets the rest in code. Where the
rest of tokenizer.json says something else, transformers ignores it.

Source: `AutoTokenizer.from_pretrained` and `TokenizersBackend.convert_to_native_format` of
transformers 5.5, and the `tokenization_*.py` of the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from embedlib.models.reading.added_tokens import Token
from embedlib.models.reading.config_file import family_of
from embedlib.models.reading.json_files import JsonObject

Step = Mapping[str, Any]
"""A normalizer or pre-tokenizer that is no sequence, as JSON."""

UNKNOWN: Final = object()
"""Stands for the unk_token of the folder, as an option of a model."""

PLAIN: Final = "TokenizersBackend"
"""The class that takes all of tokenizer.json as it is."""

PLAIN_NAMES: Final = ("PreTrainedTokenizer", PLAIN, "PythonBackend")
"""Its names in files, without "Fast"."""

SUBCLASSES: Final[Mapping[str, str]] = dict.fromkeys(
    ("DistilBertTokenizer", "ElectraTokenizer"), "BertTokenizer"
)
"""Classes that only have another name than the one they derive from."""

BERT_TOKENS: Final[Mapping[str, str]] = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
ROBERTA_TOKENS: Final[Mapping[str, str]] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
QWEN2_PIECES: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Ends:
    """The tokens that a class puts around a text, by their keys."""

    first: str
    last: str
    num_between: int
    """How many of `last` stand between two texts."""
    second_type: int
    """Token type of the second text."""


@dataclass(frozen=True, kw_only=True)
class TokenizerClass:
    """What a class sets itself; the flags are those of tokenizer_config.json."""

    model: str
    """The class in `tokenizers.models`."""
    options: Mapping[str, object]
    """Options of the model, by their keys in tokenizer.json."""
    normalizer: Callable[[JsonObject], Normalizer | None]
    pre_tokenizer: Callable[[JsonObject], PreTokenizer | None]
    flags: frozenset[str] = frozenset()
    """Keys of steps that tokenizer_config.json decides, or that change no ids."""
    optional: Sequence[Step] = ()
    """Steps of files by other releases of transformers, which the class leaves out."""
    keeps_charsmap: bool = False
    """Whether a Precompiled normalizer of tokenizer.json is taken over."""
    ends: Ends | None = None
    """None: the post-processor of tokenizer.json is taken over."""
    defaults: Mapping[str, str]
    """Special tokens, if no file names them."""
    wrap: Callable[[str, str], Token] = field(default=lambda key, content: content)
    """Makes a token of a key and a str."""
    adds_anew: bool = False
    """Whether all special tokens are added a second time, without flags."""


def class_name(tokenizer_config: JsonObject, config: JsonObject) -> str:
    """Return the name of the class that transformers takes, without "Fast".

    Raises:
        ModelUnsupportedError: the files name none, or one that is not in the table.
    """
    usual = family_of(config).tokenizer_class
    if "tokenizer_class" in tokenizer_config:
        source = tokenizer_config
        # A class that is not the one of the model_type is not trusted, except with its own code.
        own_code = "AutoTokenizer" in tokenizer_config.child("auto_map")
        decides = usual is not None and not own_code
    else:
        source, decides = config, False
    name = (source.text("tokenizer_class") or "").removesuffix("Fast")
    if decides and name != usual:
        return PLAIN
    name = name or usual or ""
    if name in PLAIN_NAMES:
        return PLAIN
    if name not in CLASSES:
        raise tokenizer_config.refuse(
            "tokenizer_class", ", ".join(["PreTrainedTokenizerFast", *CLASSES])
        )
    return name


def vocabulary_class_name(tokenizer_config: JsonObject, config: JsonObject) -> str:
    """Return the class that transformers takes for a vocabulary without tokenizer.json."""
    named = tokenizer_config.text("tokenizer_class") or config.text("tokenizer_class")
    name = (named or family_of(config).tokenizer_class or "").removesuffix("Fast")
    return SUBCLASSES.get(name, name)


def later_class_name(tokenizer_config: JsonObject, config: JsonObject) -> str | None:
    """Return the class that later releases take where 5.5 takes tokenizer.json as it is.

    They trust a class that is named although it is not the one of the model_type. None: they take
    tokenizer.json as well, or a class that is not in the table.

    Source: `AutoTokenizer.from_pretrained` of transformers 5.23.
    """
    usual = family_of(config).tokenizer_class
    if usual in (None, PLAIN):
        return None
    name = (tokenizer_config.text("tokenizer_class") or "").removesuffix("Fast")
    name = SUBCLASSES.get(name, name)
    return name if name in CLASSES else None


def _bert_normalizer(config: JsonObject) -> Normalizer:
    strip_accents = None
    if "strip_accents" in config:
        strip_accents = config.boolean("strip_accents", False)
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.boolean("tokenize_chinese_chars", True),
        strip_accents=strip_accents,
        lowercase=config.boolean("do_lower_case", True),
    )


def _byte_level(config: JsonObject) -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=config.boolean("add_prefix_space", False))


def _words_with_space(config: JsonObject) -> PreTokenizer:
    scheme = "always" if config.boolean("add_prefix_space", True) else "never"
    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )


def _text_with_space(config: JsonObject) -> PreTokenizer:
    scheme = "always" if config.boolean("legacy", False) else "first"
    if not config.boolean("add_prefix_space", True):
        scheme = "never"
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)


def _qwen2_pieces(config: JsonObject) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(
                add_prefix_space=config.boolean("add_prefix_space", False), use_regex=False
            ),
        ]
    )


def _mpnet_token(key: str, content: str) -> AddedToken:
    return AddedToken(content, lstrip=key == "mask_token", rstrip=False)


_BYTE_PAIRS: Final[Mapping[str, object]] = {
    "unk_token": None,
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_BERT: Final = TokenizerClass(
    model="WordPiece",
    options={
        "unk_token": UNKNOWN,
        "max_input_chars_per_word": 100,
        "continuing_subword_prefix": "##",
    },
    normalizer=_bert_normalizer,
    pre_tokenizer=lambda config: pre_tokenizers.BertPreTokenizer(),
    flags=frozenset({"handle_chinese_chars", "strip_accents", "lowercase"}),
    ends=Ends("cls_token", "sep_token", num_between=1, second_type=1),
    defaults=BERT_TOKENS,
)

CLASSES: Final[Mapping[str, TokenizerClass]] = {
    "BertTokenizer": _BERT,
    "MPNetTokenizer": replace(
        _BERT,
        ends=Ends("cls_token", "sep_token", num_between=2, second_type=1),
        defaults={**ROBERTA_TOKENS, "unk_token": "[UNK]"},
        wrap=_mpnet_token,
    ),
    "RobertaTokenizer": TokenizerClass(
        model="BPE",
        options=_BYTE_PAIRS,
        normalizer=lambda config: None,
        pre_tokenizer=_byte_level,
        flags=frozenset({"add_prefix_space", "trim_offsets"}),
        ends=Ends("cls_token", "sep_token", num_between=2, second_type=0),
        defaults=ROBERTA_TOKENS,
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        model="Unigram",
        options={"unk_id": 3, "byte_fallback": False},
        normalizer=lambda config: None,
        pre_tokenizer=_words_with_space,
        keeps_charsmap=True,
        # The converters of transformers 4 wrote these; multilingual-e5 and bge-m3 have some.
        optional=(
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "WhitespaceSplit"},
        ),
        ends=Ends("bos_token", "eos_token", num_between=2, second_type=0),
        defaults=ROBERTA_TOKENS,
    ),
    "LlamaTokenizer": TokenizerClass(
        model="BPE",
        options={**_BYTE_PAIRS, "fuse_unk": True, "byte_fallback": True},
        normalizer=lambda config: None,
        pre_tokenizer=_text_with_space,
        defaults={"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    ),
    "GemmaTokenizer": TokenizerClass(
        model="BPE",
        options={
            **_BYTE_PAIRS,
            "unk_token": UNKNOWN,
            "fuse_unk": True,
            "byte_fallback": True,
        },
        normalizer=lambda config: normalizers.Replace(" ", "▁"),
        pre_tokenizer=lambda config: pre_tokenizers.Split(" ", "merged_with_previous"),
        # The normalizer leaves no space to split at.
        optional=(
            {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": False,
            },
        ),
        defaults={
            "unk_token": "<unk>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
    ),
    "Qwen2Tokenizer": TokenizerClass(
        model="BPE",
        options=_BYTE_PAIRS,
        normalizer=lambda config: normalizers.NFC(),
        pre_tokenizer=_qwen2_pieces,
        flags=frozenset({"add_prefix_space", "trim_offsets"}),
        defaults=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
        adds_anew=True,
    ),
}
"""By the name without "Fast"."""

"""Loads a folder's tokenizer so that it gives the same token ids as transformers.

tokenizer.json is the tokenizer. A few keys of tokenizer_config.json change the ids, as in
transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, cast

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.config_file import family_of
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.json_files import JsonObject

BERT_CLASSES: Final = ("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer")
"""Tokenizer classes that set their own normalizer."""

BYTE_LEVEL_CLASSES: Final = ("RobertaTokenizer",)
"""Tokenizer classes that set whether a space is added in front of a text."""

BOS_EOS_CLASSES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"LlamaTokenizer": ("<s>", "</s>"), "GemmaTokenizer": ("<bos>", "<eos>")}
)
"""Tokenizer classes that add a begin and an end token by add_bos_token and add_eos_token, and the
two tokens to use if tokenizer_config.json does not name them."""


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return a model's tokenizer, without truncation or padding.

    The tokenizer also lower-cases texts if the spec requires it.

    Raises:
        ModelUnsupportedError: if there is no tokenizer.json, or it is damaged or does not fit the
            model.
    """
    path = files.transformer_dir / "tokenizer.json"
    name = path.relative_to(files.folder).as_posix()
    if not path.is_file():
        raise ModelUnsupportedError(
            f"{name}: the file is missing; write it with "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for every error
        raise ModelUnsupportedError(f"{name}: cannot be read: {error}") from error
    num_tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    if num_tokens > files.spec.encoder.vocab_size:
        raise ModelUnsupportedError(
            f"{name}: has {num_tokens} tokens; accepted: at most vocab_size = "
            f"{files.spec.encoder.vocab_size} of config.json"
        )
    # Files keep the truncation and padding that were set when they were saved: all-MiniLM-L6-v2
    # truncates at 128.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _apply_config(tokenizer, files)
    if files.spec.lowercase:
        _prepend_lowercase(tokenizer)
    return tokenizer


def _apply_config(tokenizer: Tokenizer, files: ModelFiles) -> None:
    """Apply the keys of tokenizer_config.json that override tokenizer.json in transformers."""
    config = JsonObject.load(files.transformer_dir / "tokenizer_config.json", files.folder)
    model_config = JsonObject.load(files.transformer_dir / "config.json", files.folder)
    config.check_fixed("truncation_side", ("right", None))
    if config.boolean("split_special_tokens", False):
        tokenizer.encode_special_tokens = True
    name = (
        config.text("tokenizer_class")
        or model_config.text("tokenizer_class")
        or family_of(model_config).tokenizer_class
        or ""
    ).removesuffix("Fast")
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    if name in BERT_CLASSES and isinstance(normalizer, normalizers.BertNormalizer):
        strip_accents = None
        if "strip_accents" in config:
            strip_accents = config.boolean("strip_accents", False)
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=config.boolean("tokenize_chinese_chars", True),
            strip_accents=strip_accents,
            lowercase=config.boolean("do_lower_case", True),
        )
    if name in BYTE_LEVEL_CLASSES and isinstance(pre_tokenizer, pre_tokenizers.ByteLevel):
        pre_tokenizer.add_prefix_space = config.boolean("add_prefix_space", False)
        tokenizer.pre_tokenizer = pre_tokenizer
    if name in BOS_EOS_CLASSES and ("add_bos_token" in config or "add_eos_token" in config):
        _set_ends(tokenizer, config, BOS_EOS_CLASSES[name])


def _set_ends(tokenizer: Tokenizer, config: JsonObject, defaults: tuple[str, str]) -> None:
    """Add the begin and end tokens that the flags of tokenizer_config.json turn on.

    transformers 4 did so; 5 uses only tokenizer.json. If the two files disagree, the model was
    trained with the flags: e5-mistral-7b-instruct sets add_eos_token, its tokenizer.json adds no
    end token, and the embedding is the vector of that token.

    Source: `update_post_processor` of the two classes' fast tokenizers in transformers 4, and
    https://github.com/embeddings-benchmark/mteb/pull/5237.
    """
    ends: list[list[tuple[str, int]]] = []
    for flag, key, default in (
        ("add_bos_token", "bos_token", defaults[0]),
        ("add_eos_token", "eos_token", defaults[1]),
    ):
        if not config.boolean(flag, flag == "add_bos_token"):
            ends.append([])
            continue
        value = config.values.get(key) or default
        content = value["content"] if isinstance(value, dict) else value
        token_id = tokenizer.token_to_id(content)
        if token_id is None:
            raise config.refuse(key, "a token of tokenizer.json")
        ends.append([(content, token_id)])
    before, after = ends
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[token for token, _ in before] + ["$A"] + [token for token, _ in after],
        special_tokens=before + after,
    )


def _prepend_lowercase(tokenizer: Tokenizer) -> None:
    """Add lower-casing as the first step, unless the tokenizer already has such a step.

    Source: `Transformer.__init__` in sentence-transformers, base/modules/transformer.py.
    """
    present = tokenizer.normalizer
    steps: list[normalizers.Normalizer] = []
    if isinstance(present, normalizers.Sequence):
        steps = list(cast(Iterable[normalizers.Normalizer], present))  # by __getitem__
    elif present is not None:
        steps = [present]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])

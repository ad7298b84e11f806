from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlib.models.folders import read_folder
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.fingerprint import fingerprint
from embedlib.testing import write_tiny_model
from tests.tiny_models.sparse import write_router

SETTINGS = {"precision": "float32", "truncate_dim": None}


def digest(
    folder: Path, revision: str | None = None, settings: dict[str, object] = SETTINGS
) -> str:
    return fingerprint(read_model_files(folder), revision, settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model", "bert-cls-dense")


def test_the_place_of_a_folder_does_not_matter(folder: Path, tmp_path: Path) -> None:
    first = digest(folder)
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert digest(tmp_path / "elsewhere") == first
    revision, _, rest = first.partition(":")
    assert revision == "folder"
    assert len(rest) == 32


def test_the_revision_is_told(folder: Path) -> None:
    assert digest(folder, "abc123").startswith("abc123:")


def test_the_order_of_settings_does_not_matter(folder: Path) -> None:
    assert digest(folder, settings=dict(reversed(SETTINGS.items()))) == digest(folder)
    assert digest(folder, settings=SETTINGS | {"truncate_dim": 8}) != digest(folder)


def flip(path: Path) -> None:
    """Change the last byte of a file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def set_key(path: Path) -> None:
    """Change the bytes of a JSON file, but not its values."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, indent=1))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("0_Transformer/model.safetensors", flip),
        ("2_Dense/model.safetensors", flip),
        ("0_Transformer/config.json", set_key),
        ("0_Transformer/tokenizer.json", set_key),
        ("0_Transformer/tokenizer_config.json", set_key),
        ("1_Pooling/config.json", set_key),
        ("2_Dense/config.json", set_key),
        ("modules.json", lambda path: path.write_text(path.read_text() + "\n")),
        ("config_sentence_transformers.json", set_key),
    ],
)
def test_every_file_that_decides_a_vector_counts(
    folder: Path, name: str, change: Callable[[Path], object]
) -> None:
    before = digest(folder)
    old = (folder / name).read_bytes()
    change(folder / name)
    assert (folder / name).read_bytes() != old
    assert digest(folder) != before


def test_tables_of_queries_and_heads_of_tokens_count(folder: Path, tmp_path: Path) -> None:
    router = write_router(tmp_path / "router")
    paths = sorted(router.rglob("model.safetensors"))
    found = {fingerprint(read_folder(router), None, SETTINGS)}
    for path in paths:
        flip(path)
        found.add(fingerprint(read_folder(router), None, SETTINGS))
    assert len(paths) == 2
    assert len(found) == 3
    found = {digest(folder)}
    for name in ("sparse_linear.safetensors", "colbert_linear.safetensors"):
        (folder / "0_Transformer" / name).write_bytes(b"x")
        found.add(digest(folder))
    assert len(found) == 3


def test_other_files_do_not_count(folder: Path) -> None:
    before = digest(folder)
    (folder / "README.md").write_text("about")
    assert digest(folder) == before


def test_the_answers_of_a_reranker_count(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "reranker", "qwen3-logit-score")

    def of_reranker() -> str:
        return fingerprint(read_model_files(folder, with_head=True), None, SETTINGS)

    before = of_reranker()
    place = folder / "1_LogitScore" / "config.json"
    content = json.loads(place.read_text())
    ids = (content["false_token_id"], content["true_token_id"])
    content["true_token_id"], content["false_token_id"] = ids
    place.write_text(json.dumps(content))
    assert of_reranker() != before

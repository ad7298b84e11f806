"""What destinations hold of rows and models: a change here embeds every user's rows again.

The values were computed by commit 5745ce43 of 2026-11-28. Where one has to change, destinations of
before must be recognized as well, and the changelog says what becomes of them.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from embedlib import Embedder
from embedlib.engines.kind import ChosenPrecision
from embedlib.indexing.rows import row_digest, row_id
from embedlib.models.reading.files import ModelFiles
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.session.loading import model_and_settings_fingerprint
from embedlib.testing import fake_embedder, fake_spec
from embedlib.testing.models.write import write_tiny_model
from tests.tiny_models.sparse import write_sparse_model

MODEL = "abc123:00112233445566778899aabbccddeeff"
PLAIN = {"prompts": {}, "default_prompt_name": None, "truncate_dim": None}


def test_the_id_of_a_row() -> None:
    assert str(row_id("docs/a.md", 0)) == "bbdb0eec-e2a8-565c-b57a-eda95e1756b4"
    assert str(row_id("docs/ü.md", 12)) == "f513530d-fcb7-571a-8c23-d1b785d490d2"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "8bff3e86d7743e16025e9266722190a101e7b720ff566d53"),
        (
            {"metadata": {"b": 1, "a": "ü", "c": None}},
            "8bff3e86d7743e16025e9266722190a1476ecd0332d74dad",
        ),
        ({"embedded": "title\nä text"}, "4cf7b210de4a815aa13cd981b5ce7b3401e7b720ff566d53"),
        (
            {"embedded": "ä text and more", "span": (0, 6)},
            "a1f13d3f77d27de2e449e376cff0194601e7b720ff566d53",
        ),
    ],
)
def test_the_digest_of_a_row(arguments: dict[str, Any], expected: str) -> None:
    given = {"text": "ä text", "metadata": {}, "fingerprint": MODEL, **arguments}
    assert row_digest(**given).hex() == expected
    other_commit = given | {"fingerprint": MODEL.replace("abc123", "folder")}
    assert row_digest(**other_commit).hex() == expected


@pytest.mark.parametrize(
    ("revision", "precision", "expected"),
    [
        (None, "float32", "folder:ede83fb464b0ad3ba3d7580798606860"),
        ("abc123", "float32", "abc123:ede83fb464b0ad3ba3d7580798606860"),
        (None, "int8", "folder:355eecb3615aa86f4a6b68d87c085be7"),
    ],
)
def test_the_fingerprint_of_a_model(
    revision: str | None, precision: Any, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(b'{"model_type": "bert"}\n')
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    (tmp_path / "README.md").write_bytes(b"not a part of it")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    files = ModelFiles(
        folder=tmp_path, spec=fake_spec(), transformer_dir=tmp_path, module_dirs=(tmp_path,)
    )
    opened = cast(Any, SimpleNamespace(manifest=None, revision=revision))
    chosen, settings = ChosenPrecision(name=precision), PLAIN | {"max_seq_length": 32}
    found = model_and_settings_fingerprint(opened, files, chosen, settings, FileHashes())
    assert found == expected


def test_the_settings_in_a_fingerprint(tmp_path: Path) -> None:
    with fake_embedder() as embedder:
        assert embedder._settings() == PLAIN | {"max_seq_length": 32}
    sparse = write_sparse_model(tmp_path / "sparse")
    with Embedder(sparse, threads=1) as embedder:
        assert "max_active_dims" not in embedder._settings()
    with Embedder(sparse, threads=1, max_active_dims=5) as embedder:
        assert embedder._settings()["max_active_dims"] == 5
    late = write_tiny_model(tmp_path / "late", "late-stanford")
    with Embedder(late, threads=1) as embedder:
        found = embedder._settings()
    skipped = found["late_interaction"]
    assert isinstance(skipped, dict)
    assert "".join(skipped.pop("skipped_words")) == "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    assert found == PLAIN | {
        "prompts": {"document": "[unused1] ", "query": "[unused0] "},
        "max_seq_length": 20,
        "late_interaction": {
            "query_tokens": 16,
            "document_tokens": 20,
            "expansion": {"token": "[MASK]", "min_tokens": 16, "is_attended": False},
            "markers": ("[unused0] ", "[unused1] "),
            "similarity": "maxsim",
            "skips_in_documents": True,
            "skips_in_queries": False,
        },
    }

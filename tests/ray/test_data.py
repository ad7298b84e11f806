"""Ray Data with embedlib's actor and sink."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import ray

import embedlib
from embedlib.errors import EmbedlibError, SinkError
from embedlib.testing import fake_embedder
from embedlib_ray import EmbedlibDatasink, embed_dataset
from tests.ray.fakes import logging_embedder, num_embedded

NUM_ROWS = 1000


@pytest.fixture(scope="module")
def dataset(driver: str) -> ray.data.Dataset:
    rows = [{"id": f"d{n}", "text": f"text {n}", "page": n % 7} for n in range(NUM_ROWS)]
    return ray.data.from_items(rows, override_num_blocks=4)


def test_a_dataset_gets_vectors_and_is_stored_once(
    dataset: ray.data.Dataset, log: Path, tmp_path: Path, postgres: str
) -> None:
    model = logging_embedder(log)
    embedded = embed_dataset(dataset, model, num_workers=1).materialize()
    with fake_embedder() as embedder:
        expected = embedder.encode_document([f"text {n}" for n in range(NUM_ROWS)])
        found = {row["id"]: row["embedding"] for row in embedded.take_all()}
        assert all((found[f"d{n}"] == expected[n]).all() for n in range(NUM_ROWS))
        for url in (f"jsonl:{tmp_path}/out.jsonl", f"{postgres}&table=data"):
            for _ in range(2):
                embedded.write_datasink(EmbedlibDatasink(url, model))
            # The rows are those of a load: it finds nothing to do.
            report = embedlib.index(dataset.take_all(), url, embedder=embedder, chunk=False)
            assert (report.num_unchanged, report.num_embedded) == (NUM_ROWS, 0)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == NUM_ROWS
    first = json.loads(lines[0])
    assert first["metadata"] == {
        "source": first["source_id"],
        "page": int(first["source_id"][1:]) % 7,
    }
    assert np.array_equal(found[first["source_id"]], np.float32(first["embedding"]))
    assert num_embedded(log) == NUM_ROWS


def test_what_is_wrong_is_told_before_the_first_row(
    dataset: ray.data.Dataset, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(EmbedlibError, match="nowhere"):
        embed_dataset(dataset, str(tmp_path / "nowhere"))
    url = f"jsonl:{tmp_path}/out.jsonl"
    with fake_embedder(truncate_dim=3) as embedder:
        embedlib.index([{"id": "1", "text": "text"}], url, embedder=embedder)
    with pytest.raises(SinkError, match="3 dimensions and the model makes 6"):
        dataset.write_datasink(EmbedlibDatasink(url, logging_embedder(log)))
    assert num_embedded(log) == 0

"""Types of numbers and tasks on `/v1/embeddings`, as clients of Voyage and Jina ask for them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from embedlib.testing import fake_embedder
from tests.serve.conftest import Client, MakeClient
from tests.serve.test_dialects import TEXTS, rows_of, unit

VOYAGE = {"int8": np.int8, "binary": np.int8, "uint8": np.uint8, "ubinary": np.uint8}
"""What voyageai 0.5 takes the bytes of base64 for. Source: its `util.py`."""
BITS = np.packbits(rows_of(TEXTS) > 0, axis=1)
PACKED = {"ubinary": BITS.tolist(), "binary": (BITS.astype(int) - 128).tolist()}


@pytest.mark.parametrize("kind", ["binary", "ubinary"])
def test_bits_as_voyage_reads_them(client: Client, kind: str) -> None:
    asked = {"input": TEXTS, "output_dtype": kind, "output_dimension": 6, "endianness": "big"}
    numbers = client.post("/v1/embeddings", asked)
    assert [entry["embedding"] for entry in numbers["data"]] == PACKED[kind]
    packed = client.post("/v1/embeddings", {**asked, "encoding_format": "base64"})
    rows = [
        np.frombuffer(base64.b64decode(entry["embedding"]), VOYAGE[kind]).tolist()
        for entry in packed["data"]
    ]
    assert rows == PACKED[kind]


def test_bits_of_many_rows(client: Client) -> None:
    answer = client.post("/v1/embeddings", {"input": TEXTS * 30, "output_dtype": "ubinary"})
    assert [entry["embedding"] for entry in answer["data"]] == PACKED["ubinary"] * 30


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_bytes_where_the_model_has_ranges(make_client: MakeClient, kind: Any) -> None:
    asked = {"input": TEXTS, "output_dtype": kind}
    with fake_embedder(truncate_dim=5) as embedder:  # all dimensions that differ between texts
        client = make_client({"embed": embedder})
        status, error = client.refuse("/v1/embeddings", asked)
        assert (status, error["error"]["param"]) == (400, "output_dtype")
        assert "quantization_ranges" in error["error"]["message"]
        embedder.calibrate([*TEXTS, "zzzz" * 8])
        expected = embedder.encode(TEXTS, precision=kind).tolist()
        answer = client.post("/v1/embeddings", asked)
        assert [entry["embedding"] for entry in answer["data"]] == expected
        packed = client.post("/v1/embeddings", {**asked, "encoding_format": "base64"})
        rows = [base64.b64decode(entry["embedding"]) for entry in packed["data"]]
        assert [np.frombuffer(row, VOYAGE[kind]).tolist() for row in rows] == expected
        # The ranges are those of vectors of any length.
        status, error = client.refuse("/v1/embeddings", {**asked, "normalize": True})
        assert (status, error["error"]["param"]) == (400, "output_dtype")


def test_float_is_as_without_a_type(client: Client) -> None:
    for name in ("output_dtype", "embedding_type"):
        for encoding in ("float", "base64"):
            asked = {"input": TEXTS, "encoding_format": encoding}
            answer = client.post("/v1/embeddings", {**asked, name: "float"})
            assert answer["data"] == client.post("/v1/embeddings", asked)["data"]


@pytest.mark.parametrize("kind", ["binary", "ubinary"])
def test_bits_as_jina_sends_them(client: Client, kind: str) -> None:
    # The openai SDK asks for base64 by itself, and takes it for float32.
    for more in ({}, {"encoding_format": "base64"}):
        asked = {"input": TEXTS, "embedding_type": kind, **more}
        answer = client.post("/v1/embeddings", asked)
        assert [entry["embedding"] for entry in answer["data"]] == PACKED[kind]


def test_base64_as_jina_asks_for_it(client: Client) -> None:
    answer = client.post("/v1/embeddings", {"input": TEXTS, "embedding_type": "base64"})
    rows = [np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in answer["data"]]
    assert (np.array(rows) == rows_of(TEXTS)).all()


def test_bits_are_json_whatever_is_accepted(client: Client) -> None:
    for kind in ("application/octet-stream", "application/msgpack"):
        asked = {"input": TEXTS, "output_dtype": "binary"}
        sent = client.send("POST", "/v1/embeddings", asked, headers={"accept": kind})
        assert [entry["embedding"] for entry in sent.json()["data"]] == PACKED["binary"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_dtype": "int4"}, "output_dtype"),
        ({"output_dtype": 8}, "output_dtype"),
        ({"embedding_type": "int8"}, "embedding_type"),
        ({"embedding_type": ["float", "binary"]}, "embedding_type"),
        ({"output_dtype": "binary", "embedding_type": "binary"}, "output_dtype"),
        ({"output_dtype": "binary", "encoding_format": "bytes"}, "encoding_format"),
        ({"embedding_type": "binary", "embed_dtype": "float16"}, "embed_dtype"),
        ({"modality": "image"}, "modality"),
        ({"modality": "audio"}, "modality"),
        ({"late_chunking": True}, "late_chunking"),
        ({"task": "retrieval"}, "task"),
        ({"task": "retrieval.query", "input_type": "query"}, "task"),
    ],
)
def test_what_is_not_there_is_refused(client: Client, fields: Any, param: str) -> None:
    status, error = client.refuse("/v1/embeddings", {"input": "a", **fields})
    assert (status, error["error"]["param"]) == (400, param)
    assert param in error["error"]["message"]


@pytest.mark.parametrize(
    ("task", "front"),
    [
        ("retrieval.query", "Q:"),
        ("retrieval.passage", "D:"),
        ("text-matching", ""),
        ("classification", "C:"),  # the model has a prompt of this name
        ("code", "O:"),
        ("", ""),
    ],
)
def test_tasks_choose_the_prompt(make_client: MakeClient, task: str, front: str) -> None:
    prompts = {"query": "Q:", "document": "D:", "classification": "C:", "code": "O:"}
    client = make_client({"embed": fake_embedder(prompts=prompts)})
    answer = client.post("/v1/embeddings", {"input": "a", "task": task})
    assert answer["data"][0]["embedding"] == rows_of([front + "a"])[0].tolist()


def test_a_task_of_queries_is_one_of_the_query_lane(make_client: MakeClient) -> None:
    client = make_client({"embed": fake_embedder(prompts={"retrieval.query": "R:"})})
    answer = client.post("/v1/embeddings", {"input": ["a", "b"], "task": "retrieval.query"})
    rows = [entry["embedding"] for entry in answer["data"]]
    assert rows == rows_of(["R:a", "R:b"]).tolist()
    metrics = client.send("GET", "/metrics").text
    assert 'embedlib_texts_total{model="embed",lane="query"} 2' in metrics


def test_vectors_of_unit_length_as_jina_asks_for_them(client: Client) -> None:
    asked = {"input": TEXTS, "late_chunking": False, "truncate": True}
    for normalized, right in ((True, unit(rows_of(TEXTS))), (False, rows_of(TEXTS))):
        answer = client.post("/v1/embeddings", {**asked, "normalized": normalized})
        assert np.allclose([entry["embedding"] for entry in answer["data"]], right)


def test_text_is_infinitys_modality(client: Client) -> None:
    client.post("/embeddings", {"input": "a", "modality": "text"})

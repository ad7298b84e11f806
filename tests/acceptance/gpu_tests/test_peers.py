from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.acceptance.gpu import peers  # noqa: E402
from tests.acceptance.gpu.peers import SentenceTransformersCalls, VllmCalls  # noqa: E402
from tests.acceptance.gpu.texts import texts_of  # noqa: E402

MODEL = "bge-en-icl"
LENGTHS = [3, 100, 7, 7, 2, 30]


class Ticking:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    clock = Ticking()
    monkeypatch.setattr(peers, "time", clock)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name}-1")
    return clock


class FakeSentenceTransformer:
    """Its vector is what can be seen of a text: first and last id, and how many there are."""

    made: Any = None

    def __init__(self, folder: str, **options: Any) -> None:
        self.folder = folder
        self.options = options
        self.shapes: list[tuple[int, int]] = []
        self.too_large = 1 << 30
        FakeSentenceTransformer.made = self

    def eval(self) -> FakeSentenceTransformer:
        return self

    def __call__(self, features: dict[str, Any]) -> dict[str, Any]:
        ids, mask = features["input_ids"], features["attention_mask"]
        self.shapes.append(tuple(ids.shape))
        if ids.numel() > self.too_large:
            raise torch.OutOfMemoryError("too large")
        lengths = mask.sum(dim=1)
        last = ids.gather(1, (lengths - 1)[:, None])[:, 0]
        vectors = torch.stack([ids[:, 0], last, lengths], dim=1)
        return {"sentence_embedding": vectors.to(torch.bfloat16).double()}


def seen(lengths: list[int]) -> Any:
    texts = texts_of(lengths, 60)
    return np.array([[text[0], text[-1], len(text)] for text in texts], np.float32)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, clock: Ticking) -> SentenceTransformersCalls:
    module = SimpleNamespace(SentenceTransformer=FakeSentenceTransformer)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    calls = SentenceTransformersCalls("cpu")
    loaded = calls.load(MODEL, "folder")
    assert loaded["versions"]["transformers"] == "transformers-1"
    return calls


def test_sentence_transformers_gets_sorted_batches(
    calls: SentenceTransformersCalls, tmp_path: Any
) -> None:
    model = FakeSentenceTransformer.made
    assert (model.folder, model.options["model_kwargs"]) == ("folder", {"dtype": torch.bfloat16})
    calls._batch_tokens = 40
    calls.vectors(str(tmp_path / "v.npy"), LENGTHS)
    assert (np.load(tmp_path / "v.npy") == seen(LENGTHS)).all()
    assert model.shapes == [(4, 7), (1, 30), (1, 100)]


def test_sentence_transformers_runs_at_its_best(
    calls: SentenceTransformersCalls, monkeypatch: pytest.MonkeyPatch, clock: Ticking
) -> None:
    model = FakeSentenceTransformer.made
    monkeypatch.setattr(peers, "BATCH_TOKENS", (512, 1024, 2048, 4096))
    model.too_large = 2048
    call = type(model).__call__

    def slower_when_small(self: Any, features: Any) -> Any:
        clock.now += 0.1 + (features["input_ids"].numel() == 2048)
        return call(self, features)

    monkeypatch.setattr(type(model), "__call__", slower_when_small)
    assert calls.prepare("512") == {"batch_tokens": 1024}
    found = calls.bulk("512", seconds=10)
    assert set(model.shapes[-3:]) == {(2, 512)}
    assert found["tokens_per_s"] == pytest.approx(found["texts_per_s"] * 512)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, clock: Ticking) -> Callable[..., Any]:
    """Return a function that loads a fake vLLM and returns the calls and what it was made with."""
    given: list[dict[str, Any]] = []
    asked: list[int] = []

    class LLM:
        def __init__(self, **options: Any) -> None:
            given.append(options)

        def embed(self, prompts: list[dict[str, Any]], *, use_tqdm: bool) -> list[Any]:
            asked.append(len(prompts))
            rows = [prompt["prompt_token_ids"] for prompt in prompts]
            assert all(type(token) is int for row in rows for token in row)
            vectors = [[float(row[0]), float(row[-1]), float(len(row))] for row in rows]
            return [SimpleNamespace(outputs=SimpleNamespace(embedding=v)) for v in vectors]

    config = SimpleNamespace(PoolerConfig=lambda **options: options)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, config=config))
    monkeypatch.setitem(sys.modules, "vllm.config", config)

    def load(model: str, **options: Any) -> Any:
        calls = VllmCalls("cpu")
        calls.load(model, "folder", **options)
        return calls, given[-1], asked

    return load


def test_vllm_is_given_ids_and_keeps_nothing(vllm: Callable[..., Any], tmp_path: Any) -> None:
    calls, given, asked = vllm(MODEL, quantization="fp8", max_num_batched_tokens=16_384)
    assert (given["model"], given["quantization"]) == ("folder", "fp8")
    assert given["enable_prefix_caching"] is False
    assert given["pooler_config"] == {"pooling_type": "LAST", "use_activation": True}
    assert given["max_num_batched_tokens"] == 16_384
    calls.vectors(str(tmp_path / "v.npy"), LENGTHS)
    assert (np.load(tmp_path / "v.npy") == seen(LENGTHS)).all()
    # A pass takes a second on this clock: one job of as many passes as fill the time.
    found = calls.bulk("512", seconds=5)
    assert asked[-1] == 5 * asked[-2]
    assert found["tokens_per_s"] == 5 * peers.TINY_BULK_TOKENS
    assert calls.query(16, seconds=3)["num_queries"] > 0
    assert vllm("bge-large")[1]["pooler_config"]["pooling_type"] == "CLS"

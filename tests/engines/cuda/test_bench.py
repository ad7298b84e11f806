from __future__ import annotations

import json
from dataclasses import replace

import pytest

from embedlib.engines.base import Lane
from embedlib.engines.cuda import bench, bench_models, short_batches
from embedlib.engines.cuda.bench import batch_flops, batches_of, main
from embedlib.engines.cuda.bench_models import MODELS
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.models.spec import ModelSpec


def test_the_work_of_a_token() -> None:
    # 13.96 GFLOP in linear layers and 134 MFLOP in attention, a token of 512.
    encoder = MODELS["bge-en-icl"].encoder
    assert batch_flops(encoder, [512]) / 512 == pytest.approx(13.96e9 + 134e6, rel=2e-3)
    bert = MODELS["bge-large"].encoder
    assert batch_flops(bert, [512, 512]) / 1024 == pytest.approx(0.604e9 + 50e6, rel=5e-3)


def test_batches_stay_in_the_budget() -> None:
    spec = MODELS["bge-large"]
    batches = batches_of([100, 100, 100, 300, 10], spec, 250)
    assert [batch.seq_lens.tolist() for batch in batches] == [[100, 100], [100], [300], [10]]
    assert all(batch.lane is Lane.BULK for batch in batches)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    """The smallest model of the same kind, on the CPU."""
    spec = MODELS["qwen3-embedding-0.6b"]
    sizes = {"hidden_size": 32, "num_layers": 2, "head_dim": 16, "intermediate_size": 32}
    encoder = replace(spec.encoder, vocab_size=50, windows=(None, None), **sizes)
    small = replace(spec, encoder=encoder, embedding_dim=32, max_seq_tokens=40)
    monkeypatch.setattr(bench_models, "MODELS", {"small": small})
    monkeypatch.setattr(bench, "MODELS", {"small": small})
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16,))
    return small


OPTIONS = ["--model", "small", "--device", "cpu", "--no-ceilings", "--seconds", "0.05"]


def test_every_block_gives_its_line(small: ModelSpec, capsys: pytest.CaptureFixture[str]) -> None:
    main([*OPTIONS, "--max-batch-tokens", "80"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    blocks = [result["block"] for result in results]
    assert blocks == ["start", *["bulk"] * 2, *["query"] * 2, *["queries under bulk"] * 2]
    for result in results:
        assert (result["model"], result["precision"]) == ("small", "fp8")
        assert result.get("tokens_per_s", 1) > 0
        assert result.get("num_queries", 1) > 0
        assert result.get("p50_ms", 1) <= result.get("p99_ms", 1)
        assert result.get("bulk_tokens_per_s", 1) > 0


def test_a_block_that_fails_is_told_and_the_next_begins(
    small: ModelSpec, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such block")

    monkeypatch.setattr(CudaEngine, "submit", broken)
    main([*OPTIONS, "--precision", "bf16", "--max-batch-tokens", "80"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["block"] for result in results] == ["start", *["failed"] * 6]
    assert results[-1]["error"] == "RuntimeError: no such block"

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from embedlib.models.spec import Pooling

LENGTHS = [3, 1, 4]
if importlib.util.find_spec("torch") is not None:
    import torch

    from embedlib.engines.tensorrt_llm.pooling import ACTIVATIONS, pool


@pytest.fixture
def packed() -> tuple[Any, Any, Any]:
    """Return hidden vectors of three sequences, a dummy sequence and two tokens after it."""
    hidden = torch.arange(22.0).reshape(11, 2) ** 2
    token_ids = torch.tensor([5, 6, 0, 7, 8, 9, 0, 0, 0, 0, 0], dtype=torch.int32)
    seq_lens = torch.tensor([*LENGTHS, 1], dtype=torch.int32)
    return hidden, token_ids, seq_lens


@pytest.mark.parametrize("mode", ["cls", "mean", "last_token"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_modes(mode: Any, is_padded: bool, packed: tuple[Any, Any, Any]) -> None:
    hidden, token_ids, seq_lens = packed
    if not is_padded:
        hidden, token_ids, seq_lens = hidden[:8], token_ids[:8], seq_lens[:3]
    vectors = pool(hidden, token_ids, seq_lens, Pooling(modes=(mode,)))
    parts = hidden[:8].split(LENGTHS)
    expected = {
        "cls": [part[0] for part in parts],
        "mean": [part.mean(0) for part in parts],
        "last_token": [part[-1] for part in parts],
    }[mode]
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors[:3], torch.stack(expected))


def test_several_modes(packed: tuple[Any, Any, Any]) -> None:
    hidden, token_ids, seq_lens = packed
    vectors = pool(hidden, token_ids, seq_lens, Pooling(modes=("mean", "cls")))
    assert vectors.shape == (4, 4)
    torch.testing.assert_close(vectors[0, 2:], hidden[0])


def test_the_last_token_that_is_no_padding(packed: tuple[Any, Any, Any]) -> None:
    hidden, token_ids, seq_lens = packed
    pooling = Pooling(modes=("last_token",), skipped_token_id=0)
    vectors = pool(hidden, token_ids, seq_lens, pooling)
    torch.testing.assert_close(vectors[:3], hidden[[1, 3, 5]])
    only = pool(hidden, torch.zeros_like(token_ids), seq_lens, pooling)
    torch.testing.assert_close(only[:3], hidden[[0, 3, 4]])  # the first, as transformers


def test_a_mean_is_summed_in_float32() -> None:
    hidden = torch.full((4096, 1), 1.0078125, dtype=torch.bfloat16)
    seq_lens = torch.tensor([4096], dtype=torch.int32)
    vectors = pool(hidden, torch.zeros(4096), seq_lens, Pooling(modes=("mean",)))
    assert vectors.item() == 1.0078125


def test_activations() -> None:
    values = torch.tensor([-2.0, 0.5])
    for name, activate in ACTIVATIONS.items():
        assert activate(values).shape == (2,), name
    tanh, exact = ACTIVATIONS["gelu_tanh"](values), ACTIVATIONS["gelu"](values)
    assert 1e-5 < (tanh - exact).abs().max() < 1e-2

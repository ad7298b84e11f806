"""Traits that the engine rejects; checking them needs neither torch nor tensorrt_llm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedlib.engines.tensorrt_llm.support import batch_tokens, check_supported
from embedlib.errors import EngineUnsupportedError
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Pooling
from embedlib.testing import TINY_VARIANTS

RUNS = {
    *("bert", "bert-bare", "bert-cls-dense", "roberta", "distilbert", "nomic_bert"),
    *("llama", "llama-bare", "llama-dynamic", "llama-bidirectional"),
}
REFUSED = {
    "mistral": r"attention windows of 6 tokens with texts of up to 56 \(max_seq_tokens = 6 would",
    "mistral-bidirectional": "attention windows of 5 tokens",
    "qwen2": "attention windows of 4 tokens",
    "llama-linear": "rope kind linear",
    "llama-llama3": "rope kind llama3",
    "llama-yarn": "rope kind yarn",
    "mpnet": "position_bias",
    "modernbert": "norm_placement pre with layer_norm; norms_embeddings; ",
    "gemma2": "norm_placement sandwich with rms_norm; attention_cap 0.7; attention_scale .*; "
    "norm weights stored minus one; embedding_scale .*; a gated MLP with gelu_tanh; att",
    "gemma3_text": "window_rope",
    "t5": "position_bias; attention_scale 1",
    "jina_bert": "position_bias",
    "jina_bert-code": "position_bias; qk_norm_joins_heads; norms_attention_twice",
    "nomic_bert-moe": "experts",
    "lfm2": "convolutions",
    "embedding_gemma2_text": "layer_input_size 12; has_v_norm; wide_heads; ",
    "pplx": "model_type bidirectional_pplx_qwen3, which its transformers .*; the module RoundTanh",
    "llama_bidirec": "model_type llama_bidirec, which its transformers does not know",
    "bidirlm": "model_type bidirlm, which its transformers does not know",
    "albert": "embedding_size 16",
    "bert-prompt": "pooling that excludes the prompt",
    "bert-concat": "pooling max; pooling mean_sqrt_len; pooling weighted_mean",
}


@pytest.mark.parametrize("variant", sorted(RUNS))
def test_what_it_runs(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    check_supported(read_model_files(tiny_folder(variant)).spec)


@pytest.mark.parametrize("variant", REFUSED)
def test_what_it_refuses(variant: str, tiny_folder: Callable[[str], Path]) -> None:
    spec = read_model_files(tiny_folder(variant)).spec
    told = (
        rf"^engine tensorrt_llm cannot run this {spec.encoder.family} model: .*{REFUSED[variant]}"
        r".*; leave engine out$"
    )
    with pytest.raises(EngineUnsupportedError, match=told):
        check_supported(spec)


def test_windows_as_long_as_the_texts_are_no_windows(tiny_folder: Callable[[str], Path]) -> None:
    spec = read_model_files(tiny_folder("mistral")).spec
    check_supported(replace(spec, max_seq_tokens=6))
    with pytest.raises(EngineUnsupportedError, match="texts of up to 7"):
        check_supported(replace(spec, max_seq_tokens=7))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"has_norm_bias": False}, "layer norms without bias"),
        ({"norm": "rms_norm"}, "norm_placement post with rms_norm"),
        ({"activation": "tanh"}, "an MLP with tanh"),
        ({"is_gated": True, "activation": "gelu"}, "a gated MLP with gelu"),
        ({"attention_scale": 0.5}, r"attention_scale 0\.5"),
        ({"embedding_scale": 8.0}, "embedding_scale 8"),
    ],
)
def test_single_traits(
    changes: dict[str, Any], told: str, tiny_folder: Callable[[str], Path]
) -> None:
    spec = read_model_files(tiny_folder("bert")).spec
    with pytest.raises(EngineUnsupportedError, match=f"bert model: {told}; leave"):
        check_supported(replace(spec, encoder=replace(spec.encoder, **changes)))


def test_other_pooling(tiny_folder: Callable[[str], Path]) -> None:
    spec = read_model_files(tiny_folder("bert")).spec
    with pytest.raises(EngineUnsupportedError, match="pooling max;"):
        check_supported(replace(spec, modules=(Pooling(modes=("max",)), *spec.modules[1:])))


def test_no_variant_is_left_to_chance(tiny_folder: Callable[[str], Path]) -> None:
    """Every tiny model either runs or is rejected; no other error occurs."""
    for variant in TINY_VARIANTS:
        with suppress(EngineUnsupportedError):
            check_supported(read_model_files(tiny_folder(variant)).spec)


def test_a_batch_has_room_for_the_longest_sequence(tiny_folder: Callable[[str], Path]) -> None:
    spec = replace(read_model_files(tiny_folder("bert")).spec, max_seq_tokens=32768)
    assert batch_tokens(spec, None) == 32768
    assert batch_tokens(spec, 100) == 32768
    assert batch_tokens(replace(spec, max_seq_tokens=64), 100) == 100

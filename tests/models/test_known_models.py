"""Configuration files of published models: their values, and the specs read from them.

The files are retyped from public sources. Keys that do not affect vectors (dropout, token ids,
initialization) are left out if the source does not show them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embedlib.models.encoder_parts import Experts, PositionBias, Rope
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Dense, ModelSpec, Normalize
from embedlib.models.weights.tensor_roles import encoder_shapes

Files = dict[str, Any]

ST = "sentence_transformers.models."


def _modules(*kinds: str) -> list[dict[str, Any]]:
    """Return modules.json with these modules after the Transformer."""
    entries = [{"idx": 0, "name": "0", "path": "", "type": ST + "Transformer"}]
    for index, kind in enumerate(kinds, 1):
        path = f"{index}_{kind}"
        entries.append({"idx": index, "name": str(index), "path": path, "type": ST + kind})
    return entries


def _pooling(dim: int, flag: str) -> dict[str, Any]:
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    config: dict[str, Any] = {"word_embedding_dimension": dim}
    return config | {f"pooling_mode_{name}": name == flag for name in flags}


# Source: huggingface.co/sentence-transformers/all-mpnet-base-v2 at e8c3b32.
ALL_MPNET: Files = {
    "config.json": {
        "_name_or_path": "microsoft/mpnet-base",
        "architectures": ["MPNetForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514,
        "model_type": "mpnet",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "relative_attention_num_buckets": 32,
        "transformers_version": "4.8.2",
        "vocab_size": 30527,
    },
    "modules.json": _modules("Pooling", "Normalize"),
    "1_Pooling/config.json": {
        "word_embedding_dimension": 768,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
    "sentence_bert_config.json": {"max_seq_length": 384, "do_lower_case": False},
}

# Source: the configuration of huggingface.co/distilbert/distilbert-base-uncased, on which the
# msmarco-distilbert and multi-qa-distilbert models are built.
DISTILBERT: Files = {
    "config.json": {
        "activation": "gelu",
        "architectures": ["DistilBertForMaskedLM"],
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "hidden_dim": 3072,
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "model_type": "distilbert",
        "n_heads": 12,
        "n_layers": 6,
        "output_past": True,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": 30522,
    },
    "tokenizer_config.json": {"do_lower_case": True, "model_max_length": 512},
}


def _named(stem: str) -> Files:
    path = Path(__file__).parent / "named" / f"{stem}.json"
    files: Files = json.loads(path.read_text(encoding="utf-8"))["files"]
    return files


# Their basic values are tested with those of the other popular models.
GTE_MODERNBERT = _named("gte-modernbert-base")
NOMIC = _named("nomic-embed-text-v1.5")
BGE_GEMMA2 = _named("bge-multilingual-gemma2")
EMBEDDING_GEMMA = _named("embeddinggemma-300m")


def _load(folder: Path, files: Files, **changes: Any) -> ModelSpec:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "config.json":
            content = content | changes
        path.write_text(json.dumps(content))
    return read_model_files(folder).spec


@pytest.mark.parametrize(
    ("files", "pooling", "max_seq_tokens", "dim", "is_normalized"),
    [
        (ALL_MPNET, "mean", 384, 768, True),
        (DISTILBERT, "mean", 512, 768, False),
    ],
    ids=["all-mpnet", "distilbert"],
)
def test_what_the_files_promise(
    tmp_path: Path,
    files: Files,
    pooling: str,
    max_seq_tokens: int,
    dim: int,
    is_normalized: bool,
) -> None:
    spec = _load(tmp_path, files)
    assert spec.pooling.modes == (pooling,)
    assert spec.max_seq_tokens == max_seq_tokens
    assert spec.embedding_dim == dim
    assert spec.is_normalized is is_normalized


def test_all_mpnet(tmp_path: Path) -> None:
    encoder = _load(tmp_path, ALL_MPNET).encoder
    assert encoder.position_bias == PositionBias(num_buckets=32, max_distance=128)
    assert (encoder.pad_token_id, encoder.position_offset) == (1, 2)
    assert encoder_shapes(encoder)["position_bias"] == (32, 12)


def test_gte_modernbert(tmp_path: Path) -> None:
    encoder = _load(tmp_path, GTE_MODERNBERT).encoder
    # A window of 128 is 64 tokens on either side; every third layer has no window.
    assert encoder.windows == ((None, 64, 64) * 8)[:22]
    assert encoder.rope == Rope(theta=160_000.0)
    assert encoder.window_rope == Rope(theta=10_000.0)
    shapes = encoder_shapes(encoder)
    assert not any(name.endswith(".bias") for name in shapes)
    assert "layers.0.attention_norm.weight" not in shapes
    assert "layers.1.attention_norm.weight" in shapes


def test_nomic(tmp_path: Path) -> None:
    spec = _load(tmp_path, NOMIC)
    assert spec.encoder.rope == Rope(theta=1000.0)
    assert (spec.encoder.is_gated, spec.encoder.activation) == (True, "silu")
    assert spec.encoder.num_positions == 8192  # n_positions, not the trained length


def test_nomic_v2_moe(tmp_path: Path) -> None:
    """With the values that implementations of the model require of its config.json."""
    encoder = _load(
        tmp_path,
        NOMIC,
        hidden_act="gelu",
        activation_function="gelu",
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
        num_experts=8,
        moe_top_k=2,
        moe_every_n_layers=2,
        moe_normalize_expert_weights=False,
        num_shared_experts=0,
        expert_choice_router=False,
        ffn_div=1,
    ).encoder
    assert encoder.experts == Experts(count=8, num_chosen=2, layers=(1, 3, 5, 7, 9, 11))
    assert not encoder.is_gated
    assert encoder.has_qkv_bias


def test_bge_multilingual_gemma2(tmp_path: Path) -> None:
    encoder = _load(tmp_path, BGE_GEMMA2).encoder
    assert encoder.is_causal
    assert encoder.windows == (4096, None) * 21
    assert encoder.attention_cap == 50.0
    assert encoder.attention_scale == 1 / 16
    assert encoder.embedding_scale == pytest.approx(59.8665, rel=1e-6)
    assert encoder.norm_placement == "sandwich"
    assert (encoder.num_heads, encoder.num_kv_heads, encoder.head_dim) == (16, 8, 256)


def test_embeddinggemma(tmp_path: Path) -> None:
    spec = _load(tmp_path, EMBEDDING_GEMMA)
    encoder = spec.encoder
    assert not encoder.is_causal
    # A window of 512 is 256 tokens on either side.
    assert encoder.windows == ((256,) * 5 + (None,)) * 4
    assert encoder.rope == Rope(theta=1_000_000.0)
    assert encoder.window_rope == Rope(theta=10_000.0)
    assert encoder.attention_cap is None
    assert encoder.has_qk_norm
    dense = [module for module in spec.modules if isinstance(module, Dense)]
    assert [(layer.in_features, layer.out_features) for layer in dense] == [
        (768, 3072),
        (3072, 768),
    ]
    assert isinstance(spec.modules[-1], Normalize)
    assert spec.prompts["query"] == "task: search result | query: "
    assert spec.prompts["document"] == "title: none | text: "

"""Configuration files of published models: the facts in them, and what is understood.

The files are typed anew from what is public of them; keys that say nothing of vectors (dropout,
token ids, initialisation) are left out where the source does not show them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embedlib.errors import ModelUnsupportedError
from embedlib.models.files import load_spec
from embedlib.models.spec import Dense, ModelSpec, Normalize, PositionBias, Rope
from embedlib.models.weights import encoder_shapes

Files = dict[str, Any]

ST = "sentence_transformers.models."


def _modules(*kinds: str) -> list[dict[str, Any]]:
    """modules.json with these modules behind the Transformer."""
    entries = [{"idx": 0, "name": "0", "path": "", "type": ST + "Transformer"}]
    for index, kind in enumerate(kinds, 1):
        path = f"{index}_{kind}"
        entries.append({"idx": index, "name": str(index), "path": path, "type": ST + kind})
    return entries


def _pooling(dim: int, flag: str) -> dict[str, Any]:
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    config: dict[str, Any] = {"word_embedding_dimension": dim}
    return config | {f"pooling_mode_{name}": name == flag for name in flags}


def _dense(inner: int, outer: int) -> dict[str, Any]:
    return {
        "in_features": inner,
        "out_features": outer,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }


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

# Source: keys and values as transformers 4.48 wrote them for huggingface.co/answerdotai/
# ModernBERT-base, which huggingface.co/Alibaba-NLP/gte-modernbert-base is made from; pooling and
# length are the latter's.
GTE_MODERNBERT: Files = {
    "config.json": {
        "architectures": ["ModernBertModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 50281,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": 50281,
        "decoder_bias": True,
        "deterministic_flash_attn": False,
        "embedding_dropout": 0.0,
        "eos_token_id": 50282,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "gradient_checkpointing": False,
        "hidden_activation": "gelu",
        "hidden_size": 768,
        "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02,
        "intermediate_size": 1152,
        "layer_norm_eps": 1e-05,
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05,
        "num_attention_heads": 12,
        "num_hidden_layers": 22,
        "pad_token_id": 50283,
        "position_embedding_type": "absolute",
        "reference_compile": False,
        "repad_logits_with_grad": False,
        "sep_token_id": 50282,
        "sparse_pred_ignore_index": -100,
        "sparse_prediction": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "vocab_size": 50368,
    },
    "modules.json": _modules("Pooling"),
    "1_Pooling/config.json": _pooling(768, "cls_token"),
    "sentence_bert_config.json": {"max_seq_length": 8192, "do_lower_case": False},
}

# Source: huggingface.co/nomic-ai/nomic-embed-text-v1.5 as of September 2026, which has the keys of
# its own code and those of transformers 5.
NOMIC: Files = {
    "config.json": {
        "activation_function": "swiglu",
        "architectures": ["NomicBertModel"],
        "attn_pdrop": 0.0,
        "auto_map": {
            "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
            "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
        },
        "bos_token_id": None,
        "causal": False,
        "dense_seq_output": True,
        "embd_pdrop": 0.0,
        "eos_token_id": None,
        "fused_bias_fc": True,
        "fused_dropout_add_ln": True,
        "hidden_act": "silu",
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "layer_norm_epsilon": 1e-12,
        "max_position_embeddings": 2048,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "model_type": "nomic_bert",
        "n_embd": 768,
        "n_head": 12,
        "n_inner": 3072,
        "n_layer": 12,
        "n_positions": 8192,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_vocab_size_multiple": 64,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "summary_activation": None,
        "summary_first_dropout": 0.0,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "torch_dtype": "float32",
        "type_vocab_size": 2,
        "use_cache": True,
        "use_flash_attn": True,
        "use_rms_norm": False,
        "use_xentropy": True,
        "vocab_size": 30528,
    },
    "modules.json": _modules("Pooling"),
    "1_Pooling/config.json": _pooling(768, "mean_tokens"),
    "sentence_bert_config.json": {"max_seq_length": 8192, "do_lower_case": False},
    "tokenizer_config.json": {"model_max_length": 8192, "tokenizer_class": "BertTokenizer"},
}

# Source: keys of huggingface.co/google/gemma-2-9b, from which huggingface.co/BAAI/
# bge-multilingual-gemma2 is made; vocabulary, pooling and length from the latter's files.
BGE_GEMMA2: Files = {
    "config.json": {
        "architectures": ["Gemma2Model"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "bos_token_id": 2,
        "cache_implementation": "hybrid",
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 3584,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": 256002,
    },
    "modules.json": _modules("Pooling", "Normalize"),
    "1_Pooling/config.json": _pooling(3584, "lasttoken"),
    "sentence_bert_config.json": {"max_seq_length": 4096, "do_lower_case": False},
}

# Source: modules, pooling, Dense, length and window as huggingface.co/google/embeddinggemma-300m
# has them; the sizes and thetas are those in the metadata of its conversions to GGUF.
EMBEDDING_GEMMA: Files = {
    "config.json": {
        "_sliding_window_pattern": 6,
        "architectures": ["Gemma3TextModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "dtype": "float32",
        "eos_token_id": 1,
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 1152,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4,
        "max_position_embeddings": 2048,
        "model_type": "gemma3_text",
        "num_attention_heads": 3,
        "num_hidden_layers": 24,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": 512,
        "use_bidirectional_attention": True,
        "use_cache": True,
        "vocab_size": 262144,
    },
    "modules.json": [
        *_modules("Pooling"),
        {"idx": 2, "name": "2", "path": "2_Dense", "type": ST + "Dense"},
        {"idx": 3, "name": "3", "path": "3_Dense", "type": ST + "Dense"},
        {"idx": 4, "name": "4", "path": "4_Normalize", "type": ST + "Normalize"},
    ],
    "1_Pooling/config.json": _pooling(768, "mean_tokens") | {"include_prompt": True},
    "2_Dense/config.json": _dense(768, 3072),
    "3_Dense/config.json": _dense(3072, 768),
    "sentence_bert_config.json": {"max_seq_length": 2048, "do_lower_case": False},
    "config_sentence_transformers.json": {
        "prompts": {
            "query": "task: search result | query: ",
            "document": "title: none | text: ",
        },
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    },
}


def _load(folder: Path, files: Files, **changes: Any) -> ModelSpec:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "config.json":
            content = content | changes
        path.write_text(json.dumps(content))
    return load_spec(folder)


@pytest.mark.parametrize(
    ("files", "pooling", "max_seq_tokens", "dim", "is_normalized"),
    [
        (ALL_MPNET, "mean", 384, 768, True),
        (DISTILBERT, "mean", 512, 768, False),
        (GTE_MODERNBERT, "cls", 8192, 768, False),
        (NOMIC, "mean", 8192, 768, False),
        (BGE_GEMMA2, "last_token", 4096, 3584, True),
        (EMBEDDING_GEMMA, "mean", 2048, 768, True),
    ],
    ids=["all-mpnet", "distilbert", "gte-modernbert", "nomic", "bge-gemma2", "embeddinggemma"],
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
    # The window of 128 is 64 tokens on either side; every third layer has none.
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
    assert spec.encoder.num_positions == 8192  # n_positions, not what it was trained with


def test_nomic_v2_moe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupportedError, match=r"^config.json: num_experts = 8 "):
        _load(tmp_path, NOMIC, num_experts=8)


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
    # The window of 512 is 256 tokens on either side.
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

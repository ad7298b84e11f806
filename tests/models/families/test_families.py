"""config.json to an Encoder: the values of every family, and everything that is rejected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.errors import ModelUnsupportedError
from embedlib.models.encoder_parts import Convolutions, Rope, WideHeads
from embedlib.models.families.table import FAMILIES, ROWS
from embedlib.models.reading.config_file import read_encoder
from embedlib.models.reading.config_keys import HARMLESS_KEYS
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.spec import Encoder
from embedlib.testing.models.table import VARIANTS

MISSING = object()
"""As the value of a change: removes the key."""


def _read(variant: str, **changes: Any) -> Encoder:
    values = VARIANTS[variant].config | {"vocab_size": 100} | changes
    values = {key: value for key, value in values.items() if value is not MISSING}
    return read_encoder(JsonObject("config.json", values))


def test_bert() -> None:
    assert _read("bert") == Encoder(
        family="bert",
        vocab_size=100,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=8,
        intermediate_size=64,
        activation="gelu",
        is_gated=False,
        norm="layer_norm",
        norm_eps=1e-12,
        norm_placement="post",
        num_positions=48,
        num_token_types=2,
        windows=(None, None),
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_down_bias=True,
    )


def test_mistral() -> None:
    assert _read("mistral") == Encoder(
        family="mistral",
        vocab_size=100,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        activation="silu",
        is_gated=True,
        norm="rms_norm",
        norm_eps=1e-5,
        norm_placement="pre",
        num_positions=64,
        rope=Rope(theta=10_000.0),
        is_causal=True,
        windows=(6, 6),
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        has_down_bias=False,
    )


@pytest.mark.parametrize("variant", ["roberta", "xlm-roberta"])
def test_roberta_positions_start_behind_the_padding_id(variant: str) -> None:
    encoder = _read(variant)
    assert (encoder.pad_token_id, encoder.position_offset) == (1, 2)
    assert _read(variant, pad_token_id=MISSING).position_offset == 2
    assert _read(variant, pad_token_id=0).position_offset == 1


@pytest.mark.parametrize(
    ("variant", "changes", "biases"),
    [
        ("llama", {}, (True, True, True)),
        ("llama", {"attention_bias": MISSING, "mlp_bias": MISSING}, (False, False, False)),
        ("llama", {"mlp_bias": False}, (True, True, False)),
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {}, (False, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases(variant: str, changes: dict[str, Any], biases: tuple[bool, ...]) -> None:
    encoder = _read(variant, **changes)
    assert (encoder.has_qkv_bias, encoder.has_output_bias, encoder.has_mlp_bias) == biases


@pytest.mark.parametrize(
    ("variant", "changes", "windows"),
    [
        ("mistral", {"sliding_window": None}, (None, None)),
        # transformers fills a missing key with 4096.
        ("mistral", {"sliding_window": MISSING}, (4096, 4096)),
        ("qwen2", {}, (None, 4, 4)),
        ("qwen2", {"max_window_layers": 0}, (4, 4, 4)),
        ("qwen2", {"max_window_layers": MISSING}, (None, None, None)),
        ("qwen2", {"use_sliding_window": False}, (None, None, None)),
        ("qwen2", {"use_sliding_window": MISSING}, (None, None, None)),
        ("qwen2", {"sliding_window": None}, (None, None, None)),
        (
            "qwen2",
            {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            (4, None, 4),
        ),
        ("qwen3", {"layer_types": ["full_attention"] * 2, "max_window_layers": 0}, (None, None)),
        ("modernbert", {}, (None, 4, 4, None)),
        ("modernbert", {"local_attention": 1}, (None, 0, 0, None)),
        ("modernbert", {"global_attn_every_n_layers": 2}, (None, 4, None, 4)),
        ("modernbert", {"global_attn_every_n_layers": MISSING}, (None, 4, 4, None)),
        ("gemma2", {}, (5, None, 5)),
        ("gemma2", {"sliding_window": MISSING}, (4096, None, 4096)),
        # Not halved: its class does not define a two-sided window.
        ("gemma2", {"is_causal": False}, (5, None, 5)),
        ("gemma3_text", {}, (4, 4, None)),
        ("gemma3_text", {"layer_types": MISSING, "sliding_window": 8}, (4, 4, 4)),
        ("gemma3_text-causal", {}, (9, None, 9)),
        ("gemma3_text-causal", {"sliding_window_pattern": 3}, (9, 9, None)),
    ],
)
def test_windows(variant: str, changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert _read(variant, **changes).windows == windows


@pytest.mark.parametrize(
    ("variant", "changes", "heads"),
    [
        ("llama", {"num_key_value_heads": MISSING}, (4, 8)),
        ("llama", {"num_key_value_heads": None, "head_dim": None}, (4, 8)),
        ("llama", {"head_dim": 16}, (2, 16)),
        ("qwen2", {"head_dim": 6}, (2, 6)),
        ("qwen3", {}, (2, 12)),
        # Qwen3's class has a fixed default, independent of the hidden size.
        ("qwen3", {"head_dim": MISSING}, (2, 128)),
        ("mistral", {"num_key_value_heads": MISSING, "num_attention_heads": 16}, (8, 2)),
    ],
)
def test_heads(variant: str, changes: dict[str, Any], heads: tuple[int, int]) -> None:
    encoder = _read(variant, **changes)
    assert (encoder.num_kv_heads, encoder.head_dim) == heads


@pytest.mark.parametrize("variant", ["mistral", "llama", "qwen2", "qwen3", "gemma2"])
def test_a_decoder_is_causal_unless_it_says_otherwise(variant: str) -> None:
    assert _read(variant).is_causal
    assert not _read(variant, is_causal=False).is_causal


def test_rows_of_one_model_type_have_names_of_their_own_and_something_that_chooses_them() -> None:
    own = [row for family in FAMILIES.values() for row in family.own_rows]
    assert {row.name for row in own} == ROWS.keys() - FAMILIES.keys()
    assert len(own) == len(ROWS) - len(FAMILIES)
    for row in own:
        assert row.chosen_by or row.own_code["AutoModel"]
        assert row.model_type in FAMILIES
        assert not row.own_rows


@pytest.mark.parametrize(
    ("variant", "changes", "family"),
    [
        ("t5", {}, "t5"),
        ("t5", {"feed_forward_proj": "gated-gelu"}, "t5-gated"),
        ("t5", {"dense_act_fn": "relu", "is_gated_act": False}, "t5"),
        ("t5-gated", {"dense_act_fn": "gelu_new", "is_gated_act": True}, "t5-gated"),
        ("bert", {}, "bert"),
        ("ernie", {}, "ernie"),
        ("ernie-tasks", {}, "ernie-tasks"),
        ("ernie", {"use_task_id": MISSING}, "ernie"),
        ("jina_bert", {}, "jina_bert"),
        ("jina_bert-code", {}, "jina_bert-code"),
        ("nomic_bert-own-keys", {}, "nomic_bert"),
        ("nomic_bert-own-keys", {"num_experts": 0}, None),
        ("nomic_bert-moe", {}, "nomic_bert-moe"),
        ("nomic_bert-own-keys", {"rotary_scaling_factor": 2}, "nomic_bert-long"),
        ("qwen2-both-ways", {}, "qwen2-both-ways"),
        ("qwen2-both-ways", {"is_causal": MISSING}, "qwen2-both-ways"),  # stella_en_1.5B_v5
        ("qwen2-both-ways", {"auto_map": MISSING}, "qwen2"),
        (
            "qwen2-both-ways",
            {"auto_map": {"AutoModel": "modeling_qzhou.QZhouModel"}, "is_causal": MISSING},
            "qwen2-qzhou",
        ),
        ("ministral3", {"is_causal": False, "pooling": "avg"}, "ministral3"),  # Nemotron-3-Embed
        ("qwen3-voyage", {}, "qwen3-voyage"),
        (
            "qwen3-voyage",
            {
                "auto_map": {
                    "AutoModel": "voyageai/voyage-4-nano"
                    "--modeling_qwen3_bidirectional.Qwen3BidirectionalModel"
                },
                "use_bidirectional_attention": MISSING,
            },
            "qwen3-voyage",
        ),
        ("mistral-gritlm", {}, "mistral-gritlm"),
        ("mistral-gritlm", {"auto_map": MISSING}, "mistral"),
        (
            "xlm-roberta",
            {"auto_map": {"AutoModel": "modeling_xlm_roberta.XLMRobertaModel"}},
            "xlm-roberta-flash",
        ),
        (  # jina-reranker-v2-base-multilingual
            "xlm-roberta",
            {
                "model_type": MISSING,
                "auto_map": {
                    "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
                    "AutoModel": "modeling_xlm_roberta.XLMRobertaModel",
                },
            },
            "xlm-roberta-flash",
        ),
        ("new", {"auto_map": {"AutoModel": "modeling.NewModel"}}, "new"),
    ],
)
def test_which_row_reads_a_file(variant: str, changes: dict[str, Any], family: str | None) -> None:
    if family is None:
        with pytest.raises(ModelUnsupportedError, match="num_experts = 0 is not a known key"):
            _read(variant, **changes)
    else:
        assert _read(variant, **changes).family == family


def test_texts_end_where_the_class_begins_to_scale_queries() -> None:
    assert _read("ministral3").num_positions == 48
    assert _read("ministral3", max_position_embeddings=32).num_positions == 32


# As the folder of LFM2.5-Embedding-350M has them, but for its size.
LFM2_KEYS = {
    "block_dim": 32, "block_mlp_init_scale": 1.0, "block_norm_eps": 1e-5,
    "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True,
    "conv_dim": 32, "conv_dim_out": 32, "conv_use_xavier_init": True, "use_pos_enc": True,
    "disable_flash_attention": True,
    "full_attn_idxs": [1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "layers", "inner"),
    [
        ({}, (0, 2, 3), 45),
        (LFM2_KEYS, (0, 2, 3), 45),
        (LFM2_KEYS | {"layer_types": MISSING}, (0, 2, 3), 45),
        ({"layer_types": MISSING, "full_attn_idxs": [0, 3]}, (1, 2), 45),
        ({"block_auto_adjust_ff_dim": False}, (0, 2, 3), 68),
        ({"block_ffn_dim_multiplier": 1.5}, (0, 2, 3), 69),
        ({"block_ffn_dim_multiplier": None, "block_multiple_of": 16}, (0, 2, 3), 45),
        ({"block_multiple_of": 16}, (0, 2, 3), 48),
        ({"architectures": ["Lfm2BidirectionalForMaskedLM"]}, (0, 2, 3), 45),
        ({"model_type": "lfm2_bidirectional", "architectures": MISSING}, (0, 2, 3), 45),
    ],
)
def test_convolutions(changes: dict[str, Any], layers: tuple[int, ...], inner: int) -> None:
    encoder = _read("lfm2", **changes)
    assert encoder.convolutions == Convolutions(layers=layers, width=3, has_bias=True)
    assert (encoder.intermediate_size, encoder.is_causal) == (inner, False)


def test_gemma_reads_gelu_as_its_tanh_form() -> None:
    assert _read("gemma").activation == "gelu_tanh"
    assert _read("gemma").is_causal


def test_gemma3_is_bidirectional_under_a_key_of_its_own() -> None:
    assert not _read("gemma3_text").is_causal
    assert _read("gemma3_text", use_bidirectional_attention=False).is_causal
    assert _read("gemma3_text", use_bidirectional_attention=MISSING).is_causal


@pytest.mark.parametrize(
    ("variant", "changes", "ropes"),
    [
        ("gemma2", {}, (Rope(theta=10_000.0), None)),
        ("gemma3_text", {}, (Rope(theta=2000.0), Rope(theta=30.0))),
        # In the format of transformers 4, scaling applies to the layers without a window.
        (
            "gemma3_text-causal",
            {},
            (
                Rope(kind="linear", theta=3000.0, factor=8.0, original_max_positions=64),
                Rope(theta=50.0),
            ),
        ),
        ("modernbert", {"local_rope_theta": MISSING}, (Rope(theta=900.0), Rope(theta=10_000.0))),
        (
            "modernbert",
            {"rope_parameters": {"sliding_attention": {"rope_theta": 7.0}}},
            (Rope(theta=900.0), Rope(theta=7.0)),
        ),
        (
            # As transformers 5.5 saves it if all layers are of one kind.
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 9.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 8.0},
                    "rope_type": "default",
                    "rope_theta": None,
                }
            },
            (Rope(theta=9.0), Rope(theta=8.0)),
        ),
        ("nomic_bert", {"rope_parameters": MISSING}, (Rope(theta=1000.0), None)),
        # The class of transformers and arctic-embed's own code have other defaults.
        ("gte-native", {}, (Rope(theta=160_000.0), None)),
        ("gte", {"rope_theta": MISSING}, (Rope(theta=10_000.0), None)),
        ("gte", {"rope_theta": MISSING, "auto_map": MISSING}, (Rope(theta=160_000.0), None)),
        (
            # As transformers writes what the models' own code calls ntk.
            "gte-native",
            {"rope_parameters": {"rope_type": "linear", "factor": 1.5, "rope_theta": 9.0}},
            (Rope(kind="linear", theta=9.0, factor=1.5, original_max_positions=48), None),
        ),
        ("ultrabert", {}, (Rope(theta=900.0), Rope(theta=40.0))),
        ("ultrabert", {"rope_parameters": MISSING}, (Rope(theta=2_560_000.0), Rope(theta=1e4))),
        ("nomic_bert-own-keys", {}, (Rope(theta=300.0), None)),
        ("nomic_bert-own-keys", {"rotary_emb_base": MISSING}, (Rope(theta=1000.0), None)),
    ],
)
def test_ropes(
    variant: str, changes: dict[str, Any], ropes: tuple[Rope | None, Rope | None]
) -> None:
    encoder = _read(variant, **changes)
    assert (encoder.rope, encoder.window_rope) == ropes


@pytest.mark.parametrize(
    ("name", "activation"),
    [("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("swish", "silu")],
)
def test_names_of_activations(name: str, activation: str) -> None:
    assert _read("bert", hidden_act=name).activation == activation


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3_ROPE = Rope(kind="llama3", theta=500.0, factor=8.0, original_max_positions=16)


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({"rope_parameters": MISSING}, Rope(theta=10_000.0)),
        ({"rope_parameters": None, "rope_theta": 5}, Rope(theta=5.0)),
        ({"rope_parameters": {"rope_theta": 7.0}, "rope_theta": 5}, Rope(theta=7.0)),
        (
            {
                "rope_parameters": MISSING,
                "rope_theta": 500.0,
                "rope_scaling": LLAMA3 | {"type": "llama3"},
            },
            LLAMA3_ROPE,
        ),
        (
            {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 500.0}},
            LLAMA3_ROPE,
        ),
        (
            # The outer key takes precedence, as in transformers.
            {
                "rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 500.0},
                "original_max_position_embeddings": 8,
            },
            Rope(kind="llama3", theta=500.0, factor=8.0, original_max_positions=8),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4}},
            Rope(kind="yarn", factor=4.0, original_max_positions=64),
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            Rope(kind="linear", factor=2.0, original_max_positions=64),
        ),
    ],
)
def test_rope_in_the_spelling_of_transformers_4_and_5(changes: dict[str, Any], rope: Rope) -> None:
    assert _read("llama", **changes).rope == rope


def test_scores_of_three_products_are_divided_by_the_root_of_three_heads() -> None:
    encoder = _read("deberta-v2", position_buckets=4)  # no fewer
    assert encoder.attention_scale == pytest.approx((3 * encoder.head_dim) ** -0.5)


def test_layers_without_a_window_may_have_other_heads() -> None:
    heads = _read("embedding_gemma2_text").wide_heads
    assert heads == WideHeads(head_dim=12, num_kv_heads=1)


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        (
            "bert",
            {"model_type": "roformer"},
            'model_type = "roformer" is not supported; accepted: bert',
        ),
        ("bert", {"model_type": MISSING}, "model_type is missing"),
        ("bert", {"model_type": "qwen3_5"}, 'model_type = "qwen3_5" mixes .* Qwen3-Embedding'),
        ("bert", {"model_type": "t5gemma2"}, 'model_type = "t5gemma2" has an encoder and a dec'),
        ("qwen3", {"architectures": ["JinaForRanking"]}, 'architectures = "Jina.* is a listwise'),
        (
            "qwen3",
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config = .*gptq.* not quantized: load the one it was made from",
        ),
        ("bert", {"hidden_act": "foo"}, 'hidden_act = "foo" is not supported; accepted: gelu'),
        (
            "qwen3",
            {"auto_map": {"AutoModel": "modeling_qwen3_jasper.JasperV2Encoder"}},
            "auto_map = .*Jasper pools tokens",
        ),
        ("bert", {"hidden_act": ["gelu"]}, r'hidden_act = \["gelu"\] is not supported'),
        ("bert", {"position_embedding_type": "relative_key"}, 'position_embedding_type = "rela'),
        ("bert", {"is_decoder": True}, "is_decoder = true"),
        ("bert", {"is_causal": True}, "is_causal = true"),
        ("mistral", {"is_causal": None}, "is_causal = null is not supported; accepted: true, f"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention = true"),
        (
            "bert",
            {"hidden_size": "32"},
            'hidden_size = "32" is not supported; accepted: an integer',
        ),
        ("bert", {"hidden_size": 30}, "num_attention_heads = 4 .* divisor of hidden_size = 30"),
        ("bert", {"hidden_size": True}, "hidden_size = true"),
        ("bert", {"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ("bert", {"vocab_size": MISSING}, "vocab_size is missing"),
        ("bert", {"layer_norm_eps": -1}, "layer_norm_eps = -1"),
        ("bert", {"rope_theta": 1.0}, "rope_theta = 1.0 is not a known key"),
        (  # transformers 5 leaves it out, 4 reads it
            "gemma3_text",
            {"rope_scaling": {"type": "linear", "factor": 8.0}},
            'rope_scaling: type = "linear"',
        ),
        ("bert", {"quantization_config": {"bits": 4}}, "quantization_config = .*bits"),
        ("bert", {"auto_map": {"AutoModel": "own.Model"}}, "auto_map = .*own.Model"),
        ("bert", {"auto_map": "own.Model"}, "auto_map = .*own.Model.*an object"),
        ("roberta", {"pad_token_id": None}, "pad_token_id = null"),
        ("llama", {"sliding_window": 8}, "sliding_window = 8"),
        ("llama", {"layer_types": ["full_attention"] * 2}, "layer_types = "),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads = 3 .* divisor"),
        ("llama", {"head_dim": 7}, "head_dim = 7 .* even"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not a known"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("llama", {"attention_bias": "yes"}, 'attention_bias = "yes"'),
        ("llama", {"use_bidirectional_attention": True}, "use_bidirectional_attention = true"),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types = "),
        ("mistral", {"use_sliding_window": False}, "use_sliding_window = false is not a known"),
        ("mistral", {"attention_bias": True}, "attention_bias = true"),
        ("mistral", {"sliding_window": 0}, "sliding_window = 0"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types = .* a list of 3 names"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "layer_types = "),
        (
            "qwen2",
            {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": False},
            "layer_types = ",
        ),
        ("qwen2", {"attention_bias": False}, "attention_bias = false"),
        ("distilbert", {"hidden_size": 64}, "dim = 32 .* accepted: 64, the value of hidden_size"),
        ("distilbert", {"dim": MISSING}, "dim is missing"),
        ("distilbert", {"activation": "glu"}, 'activation = "glu"'),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id = 0"),
        ("modernbert", {"local_attention": None}, "local_attention = null"),
        ("modernbert", {"local_rope_theta": None}, "local_rope_theta = null"),
        ("modernbert", {"rope_scaling": {"type": "linear"}}, "rope_scaling = "),
        ("modernbert", {"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters: rope_theta = 1"),
        ("modernbert", {"sliding_window": 8}, "sliding_window = 8 is not a known key"),
        ("modernbert", {"layer_types": []}, "layer_types = "),
        ("gte", {"auto_map": {"AutoModel": "x.GteModel"}}, "auto_map = .*or modeling_hf_alibaba"),
        ("deberta-v2", {"relative_attention": MISSING}, "relative_attention is missing"),
        ("deberta-v2", {"position_biased_input": True}, "position_biased_input = true"),
        ("deberta-v2", {"pos_att_type": "c2p"}, 'pos_att_type = "c2p"'),
        ("deberta-v2", {"position_buckets": 96}, "position_buckets = 96"),
        ("deberta-v2", {"position_buckets": 3}, "position_buckets = 3"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size = 3"),
        ("electra", {"embedding_size": 0}, "embedding_size = 0"),
        ("albert", {"num_hidden_groups": 2}, "num_hidden_groups = 2"),
        ("albert", {"inner_group_num": 2}, "inner_group_num = 2"),
        (
            "bert",
            {"model_type": MISSING, "pooling_mode_mean_tokens": True},
            "is that of a Pooling, which took the place .*; copy the model again with its folders",
        ),
        ("ernie", {"use_task_id": "yes"}, 'use_task_id = "yes"'),
        ("ministral3", {"rope_parameters": MISSING}, "rope_parameters: type is missing"),
        (  # transformers takes it for false, and one that is missing for true
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": None}},
            "rope_parameters: truncate = null",
        ),
        ("llama_bidirec", {"pooling": "last"}, 'pooling = "last"'),
        ("llama_bidirec", {"is_causal": True}, "is_causal = true"),
        ("eurobert", {"auto_map": {"AutoModel": "own.Model"}}, "auto_map = .*modeling_eurobert"),
        ("ultrabert", {"attention_windows": [4, 4, None, 4]}, "attention_windows = "),
        ("ultrabert", {"rope_theta": [4.0, 4.0]}, "rope_theta = "),
        ("gemma", {"hidden_activation": "relu"}, 'hidden_activation = "relu"'),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = true"),
        ("gemma2", {"sliding_window": None}, "sliding_window = null"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = true"),
        ("gemma2", {"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
        ("gemma3_text", {"is_causal": False}, "is_causal = false"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar = 0"),
        ("nomic_bert", {"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
        ("nomic_bert", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: rope_type"),
        ("nomic_bert-own-keys", {"activation_function": MISSING}, "activation_function is missing"),
        ("nomic_bert-own-keys", {"activation_function": "gelu"}, 'activation_function = "gelu"'),
        ("nomic_bert-own-keys", {"rotary_emb_fraction": MISSING}, "rotary_emb_fraction is missing"),
        ("nomic_bert-own-keys", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction = 0.5"),
        (
            "nomic_bert-own-keys",
            {"rotary_scaling_factor": 2, "max_trained_positions": MISSING},
            "max_trained_positions is missing",
        ),
        ("nomic_bert-moe", {"rotary_scaling_factor": 2}, "rotary_scaling_factor = 2"),
        ("nomic_bert-own-keys", {"rotary_scaling_factor": 4}, "rotary_scaling_factor = 4"),
        ("nomic_bert-own-keys", {"prenorm": True}, "prenorm = true"),
        ("nomic_bert-own-keys", {"num_experts": 8}, "moe_normalize_expert_weights is missing"),
        (
            "nomic_bert-moe",
            {"moe_normalize_expert_weights": True},
            "moe_normalize_expert_weights = t",
        ),
        ("nomic_bert-moe", {"num_shared_experts": 1}, "num_shared_experts = 1"),
        ("nomic_bert-moe", {"expert_choice_router": True}, "expert_choice_router = true"),
        ("nomic_bert-moe", {"moe_top_k": 7}, "moe_top_k = 7 .* at most num_experts = 6"),
        ("nomic_bert-moe", {"moe_every_n_layers": 1}, "moe_every_n_layers = 1"),
        ("nomic_bert-moe", {"activation_function": "swiglu"}, 'activation_function = "swiglu"'),
        ("t5", {"feed_forward_proj": "gated-silu"}, 'feed_forward_proj = "gated-silu"'),
        ("t5", {"dense_act_fn": "gelu"}, 'dense_act_fn = "gelu" .* "relu", the value of feed_f'),
        ("t5", {"is_gated_act": True}, "is_gated_act = true"),
        ("t5-gated", {"dense_act_fn": "silu"}, 'dense_act_fn = "silu"'),
        ("t5-gated", {"is_gated_act": False}, "is_gated_act = false"),
        ("t5", {"relative_attention_num_buckets": 6}, "relative_attention_num_buckets = 6"),
        ("t5", {"relative_attention_max_distance": 4}, "relative_attention_max_distance = 4"),
        ("t5", {"model_type": "mt5"}, 'model_type = "mt5" has an encoder and a decoder'),
        (
            "llama_bidirec",
            {"model_type": "llama_nemotron_vl"},
            'model_type = "llama_nemotron_vl" takes',
        ),
        ("t5", {"model_type": "bart"}, 'model_type = "bart" has an encoder.*-zeroshot-v2.0 is'),
        ("jina_bert", {"position_embedding_type": "absolute"}, 'position_embedding_type = "abs'),
        ("jina_bert", {"feed_forward_type": "reglu"}, 'feed_forward_type = "reglu"'),
        ("jina_bert", {"feed_forward_type": MISSING}, "feed_forward_type is missing"),
        ("qwen2-both-ways", {"is_causal": True}, "is_causal = true"),
        ("qwen3-voyage", {"is_causal": True}, "is_causal = true"),
        ("qwen3-voyage", {"use_bidirectional_attention": False}, "use_bidirectional_attention = f"),
        (  # a class of this name in another file has no matrix
            "qwen3-voyage",
            {"auto_map": {"AutoModel": "modeling_bidirectional.Qwen3BidirectionalModel"}},
            "auto_map = .*or modeling_qwen3_bidirectional.Qwen3BidirectionalModel",
        ),
        (
            "xlm-roberta",
            {"model_type": MISSING, "auto_map": {"AutoConfig": "configuration_other.Config"}},
            "model_type is missing",
        ),
        ("pplx", {"use_bidirectional_attention": False}, "use_bidirectional_attention = false"),
        ("pplx", {"auto_map": {"AutoModel": "modeling.Other"}}, "auto_map = .*or PPLXQwen3Model"),
        (
            "jina_bert",
            {"auto_map": {"AutoModel": "jinaai/other--modeling_bert.JinaBertModel"}},
            "auto_map = .*or jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel",
        ),
        ("ministral3", {"pooling": "last"}, 'pooling = "last" is not supported; accepted: "avg"'),
        ("mistral-gritlm", {"is_causal": True}, "is_causal = true"),
        ("mistral-gritlm", {"auto_map": {"AutoModel": "x.MistralModel"}}, "auto_map = .*gritlm7b"),
        ("mistral-gritlm", {"architectures": ["GritLM"]}, "architectures = .*GritLM/GritLM-7B"),
        ("mistral", {"model_type": "mixtral"}, 'model_type = "mixtral" .*GritLM-7B'),
        (
            "lfm2",
            {"architectures": ["Lfm2ForCausalLM"]},
            "architectures = .* reads from left .*LFM2.5",
        ),
        ("lfm2", {"architectures": ["Lfm2Other"]}, 'architectures = .*Lfm2BidirectionalModel"'),
        ("lfm2", {"architectures": MISSING}, "architectures is missing"),
        ("lfm2", {"auto_map": {"AutoModel": "modeling.Other"}}, "auto_map = .*never runs"),
        ("lfm2", {"conv_L_cache": 4}, "conv_L_cache = 4 .* an odd number"),
        ("lfm2", {"layer_types": ["conv"]}, "layer_types = .* a list of 4 names"),
        ("lfm2", {"layer_types": MISSING}, "full_attn_idxs is missing"),
        (
            "lfm2",
            {"layer_types": MISSING, "full_attn_idxs": [4]},
            "full_attn_idxs = .* from 0 to 3",
        ),
        ("lfm2", {"use_pos_enc": False}, "use_pos_enc = false"),
        ("lfm2", {"num_heads": 2}, "num_heads = 2 .* the value of num_attention_heads"),
        ("bidirlm", {"auto_map": {"AutoModel": "x.Other"}}, "auto_map = .*BidirLMModel"),
        ("bidirlm", {"head_dim": MISSING}, "head_dim is missing"),
        ("bidirlm", {"layer_types": ["sliding_attention"] * 2}, "layer_types = "),
        ("bidirlm", {"query_pre_attn_scalar": 256}, "query_pre_attn_scalar = 256 is not a known"),
        ("bidirlm", {"model_type": "bidirlm_omni"}, 'model_type = "bidirlm_omni" takes images'),
        (
            "mistral",
            {"auto_map": {"AutoModel": "x.y"}},
            "auto_map = .* Qwen3-Embedding is the near",
        ),
        ("embedding_gemma2_text", {"per_layer_config": MISSING}, "per_layer_config is missing"),
        (
            "embedding_gemma2_text",
            {"layer_types": ["full_attention", "sliding_attention"] * 2},
            "layer_types = .* full_attention in the last layer",
        ),
        (
            "embedding_gemma2_text",
            {"per_layer_config": {"1": {"head_dim": 12, "num_key_value_heads": 1}}},
            "per_layer_config = .* the layers 1, 3 alone",
        ),
        (
            "embedding_gemma2_text",
            {"per_layer_config": {key: {"head_dim": 12} for key in ("1", "01", "3")}},
            "per_layer_config = .* the layers 1, 3 alone",
        ),
        (
            "embedding_gemma2_text",
            {"per_layer_config": {key: {"head_dim": 7, "num_key_value_heads": 1} for key in "13"}},
            "per_layer_config = .* even head_dim",
        ),
        (
            "embedding_gemma2_text",
            {"per_layer_config": {key: {"head_dim": 8, "num_key_value_heads": 3} for key in "13"}},
            "per_layer_config = .* divisor of num_attention_heads",
        ),
        ("nomic_bert-own-keys", {"auto_map": {"AutoModel": "x.Model"}}, "auto_map = .*or nomic-ai"),
        ("new", {"auto_map": {"AutoModel": "x.NewModel"}}, "auto_map = .*or Alibaba-NLP/new-impl"),
        ("new", {"logn_attention_scale": True}, "logn_attention_scale = true"),
        ("new", {"logn_attention_clip1": True}, "logn_attention_clip1 = true"),
        ("new", {"pack_qkv": False}, "pack_qkv = false"),
        ("new", {"layer_norm_type": "rms_norm"}, 'layer_norm_type = "rms_norm"'),
        ("new", {"position_embedding_type": "absolute"}, "position_embedding_type = "),
        (
            "new",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            'rope_scaling: type = "linear" .*: default, ntk',
        ),
        ("new", {"rope_scaling": {"type": "ntk", "factor": 0.5}}, "rope_scaling: factor = 0.5"),
        (
            "new",
            {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}},
            "rope_scaling: mixed_b = 0.6",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}},
            'rope_parameters: rope_type = "ntk"',
        ),
        (
            "nomic_bert-both-keys",
            {"n_layer": 3},
            "n_layer = 3 .* 2, the value of num_hidden_layers",
        ),
        (
            "nomic_bert-both-keys",
            {"rotary_emb_base": 9.0},
            "rotary_emb_base = 9.0 .* 300, the value of rope_parameters",
        ),
        (
            "gemma3_text",
            {"rope_parameters": {"factor": 2.0}},
            "rope_parameters: factor = 2.0 is not",
        ),
        (
            "gemma3_text",
            {"rope_parameters": {"rope_type": "linear"}},
            "rope_parameters: rope_type = ",
        ),
        (
            "gemma3_text",
            {"rope_parameters": {"rope_theta": 5.0}},
            "rope_parameters: rope_theta = 5",
        ),
        (
            "gemma3_text",
            {"original_max_position_embeddings": 8},
            "original_max_position_embeddings = 8",
        ),
    ],
)
def test_refusals_name_file_key_and_value(
    variant: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelUnsupportedError, match=f"^config.json: {message}"):
        _read(variant, **changes)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, 'rope_type = "longrope"'),
        ({"type": "su", "factor": 2.0}, 'type = "su" is not supported; accepted: default, linear'),
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": 0}, "factor = 0"),
        ({"rope_type": "default", "factor": 2.0}, "factor = 2.0 is not a known key"),
        ({"rope_type": "yarn", "factor": 2.0, "low_freq_factor": 1.0}, "low_freq_factor = 1.0 is"),
        ({"rope_type": "llama3", "factor": 2.0}, "low_freq_factor is missing"),
        (LLAMA3 | {"rope_type": "llama3", "low_freq_factor": 4.0}, "high_freq.* more than low_f"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention = .* is not a known key"),
    ],
)
def test_refusals_of_rope(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupportedError, match=f"^config.json: rope_parameters: {message}"):
        _read("llama", rope_parameters=parameters)


def test_yarn_without_a_factor_has_that_of_its_lengths() -> None:
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 8}
    encoder = _read("llama", max_position_embeddings=48, rope_parameters=yarn)
    assert encoder.rope is not None
    assert encoder.rope.factor == 6.0


def test_two_spellings_of_rope_at_once_are_refused() -> None:
    with pytest.raises(ModelUnsupportedError, match=r"^config.json: rope_scaling = .*either"):
        _read("llama", rope_scaling={"type": "linear", "factor": 2.0})


@pytest.mark.parametrize("variant", VARIANTS)
def test_harmless_keys_change_nothing(variant: str) -> None:
    changes: dict[str, Any] = dict.fromkeys(HARMLESS_KEYS - VARIANTS[variant].config.keys(), None)
    changes |= {
        "torch_dtype": "bfloat16",
        "transformers_version": "9.9",
        "id2label": {"0": "LABEL_0"},
        "auto_map": VARIANTS[variant].config.get("auto_map", {})
        | {"AutoTokenizer": ["own.Tokenizer", None]},
    }
    assert _read(variant, **changes) == _read(variant)


@given(
    st.sampled_from(sorted(VARIANTS)), st.text(min_size=1), st.none() | st.integers() | st.text()
)
def test_a_key_nobody_knows_is_refused(variant: str, key: str, value: object) -> None:
    with pytest.raises(ModelUnsupportedError, match="is not a known key"):
        _read(variant, **{f"x-{key}": value})


def test_every_family_has_a_tiny_variant() -> None:
    # The last is another name of lfm2, which test_convolutions reads.
    tried = {row.config["model_type"] for row in VARIANTS.values()} | {"lfm2_bidirectional"}
    assert tried == set(FAMILIES)

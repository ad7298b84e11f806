"""Tiny models with rotary positions and bidirectional attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.testing.models.variant import MEAN, NORMALIZE, SIZES, Json, TinyVariant, pooling

MODERNBERT: Final[Json] = {
    "model_type": "modernbert",
    "architectures": ["ModernBertModel"],
    "hidden_size": 36,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "local_attention": 9,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
NOMIC_BERT: Final[Json] = SIZES | {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "intermediate_size": 48,
    "max_position_embeddings": 30,
    "hidden_act": "silu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
}
NOMIC_BERT_OWN_KEYS: Final[Json] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {
        "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
    },
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 48,
    "n_positions": 64,
    "max_trained_positions": 30,
    "activation_function": "swiglu",
    "type_vocab_size": 2,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 300.0,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "prenorm": False,
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
}
# Like gte-base-en-v1.5.
NEW: Final[Json] = SIZES | {
    "model_type": "new",
    "architectures": ["NewModel"],
    "auto_map": {
        "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
        "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel",
        "AutoModelForSequenceClassification": (
            "Alibaba-NLP/new-impl--modeling.NewForSequenceClassification"
        ),
    },
    "intermediate_size": 40,
    "max_position_embeddings": 48,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "position_embedding_type": "rope",
    "rope_theta": 200.0,
    "rope_scaling": {"factor": 3.0, "type": "ntk"},
    "type_vocab_size": 0,
    "pad_token_id": 0,
    "pack_qkv": True,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
    "logn_attention_scale": False,
    "logn_attention_clip1": False,
}
GTE: Final[Json] = NEW | {
    "model_type": "gte",
    "architectures": ["GteModel"],
    "auto_map": {
        "AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig",
        "AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel",
    },
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "rope_scaling": None,
    "rope_theta": 600.0,
    "matryoshka_dimensions": [16],
}
# As transformers writes it: the rope's theta is the class's default.
GTE_NATIVE: Final[Json] = SIZES | {
    "model_type": "gte",
    "architectures": ["GteModel"],
    "intermediate_size": 40,
    "max_position_embeddings": 48,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
NOMIC_MOE: Final[Json] = NOMIC_BERT_OWN_KEYS | {
    "n_layer": 4,
    "n_inner": 40,
    "n_positions": 48,
    "max_trained_positions": 48,
    "activation_function": "gelu",
    "type_vocab_size": 1,
    "layer_norm_epsilon": 1e-5,
    "rotary_emb_scale_base": None,
    "parallel_block": False,
    "qkv_proj_bias": True,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "num_experts": 6,
    "moe_top_k": 2,
    "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False,
    "num_shared_experts": 0,
    "expert_choice_router": False,
    "ffn_div": 1,
    "moe_impl": "megablocks",
    "moe_resid_pdrop": 0.0,
    "router_aux_loss_coef": 0.1,
    "add_pooling_layer": False,
    "pad_token_id": 1,
}

ROTARY_ENCODERS: Final[Mapping[str, TinyVariant]] = {
    "modernbert": TinyVariant(
        tokenizer="bert",
        config=MODERNBERT
        | {
            "layer_norm_eps": 1e-5,
            "position_embedding_type": "absolute",
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 900.0,
            "local_rope_theta": 40.0,
            "attention_bias": False,
            "mlp_bias": False,
            "norm_bias": False,
        },
        modules=(pooling("cls_token", dim=36),),
        tokenizer_config={"model_max_length": 48},
        settings={"max_seq_length": 48, "do_lower_case": False},
    ),
    "modernbert-biases": TinyVariant(
        tokenizer="bert",
        config=MODERNBERT
        | {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        modules=(pooling("mean_tokens", dim=36),),
        tokenizer_config={"model_max_length": 48},
        prefix="model.",
    ),
    # In the format that transformers 5 saves.
    "nomic_bert": TinyVariant(
        tokenizer="bert",
        config=NOMIC_BERT,
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 8192},
        settings={"max_seq_length": 30, "do_lower_case": False},
    ),
    # Only the keys of the model's own code.
    "nomic_bert-own-keys": TinyVariant(
        tokenizer="bert",
        config=NOMIC_BERT_OWN_KEYS,
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 8192},
        settings={"max_seq_length": 45, "do_lower_case": False},
        reference_config=NOMIC_BERT,
    ),
    # Like arctic-embed-m-long: texts end at the trained length.
    "nomic_bert-long": TinyVariant(
        tokenizer="bert",
        config=NOMIC_BERT_OWN_KEYS | {"rotary_scaling_factor": 2},
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 8192},
        settings={"max_seq_length": 30, "do_lower_case": False},
        reference_config=NOMIC_BERT,
    ),
    # Both sets of keys, like nomic-embed-text-v1.5; texts may exceed the trained length.
    "nomic_bert-both-keys": TinyVariant(
        tokenizer="bert",
        config=NOMIC_BERT_OWN_KEYS | NOMIC_BERT,
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 8192},
        settings={"max_seq_length": 40, "do_lower_case": False},
    ),
    "new": TinyVariant(
        tokenizer="bert",
        config=NEW,
        modules=(pooling("cls_token"),),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
        settings={"max_seq_length": 48, "do_lower_case": False},
    ),
    # Like gte-multilingual-base, whose files also contain a head for token weights.
    "new-types": TinyVariant(
        tokenizer="xlm-roberta",
        config=NEW | {"type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "gelu_new"},
        modules=(pooling("cls_token"), NORMALIZE),
        tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 40},
        prefix="new.",
    ),
    # Like snowflake-arctic-embed-m-v2.0.
    "gte": TinyVariant(
        tokenizer="xlm-roberta",
        config=GTE | dict.fromkeys(("unpad_inputs", "use_memory_efficient_attention"), "true"),
        modules=(pooling("cls_token"), NORMALIZE),
        tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"},
        settings={"max_seq_length": 44, "do_lower_case": False},
        general={"prompts": {"query": "query: "}},
        # The model's code treats the strings as true and would then need xformers.
        reference_config=GTE,
    ),
    "gte-native": TinyVariant(
        tokenizer="xlm-roberta",
        config=GTE_NATIVE,
        modules=(pooling("cls_token"), NORMALIZE),
        tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"},
        settings={"max_seq_length": 44, "do_lower_case": False},
    ),
    "jina_embeddings_v3": TinyVariant(
        tokenizer="xlm-roberta",
        config={
            "model_type": "jina_embeddings_v3",
            "architectures": ["JinaEmbeddingsV3Model"],
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 50,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        },
        modules=(MEAN, NORMALIZE),
        tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 48},
        prefix="roberta.",
    ),
    # Like nomic-embed-text-v2-moe.
    "nomic_bert-moe": TinyVariant(
        tokenizer="xlm-roberta",
        config=NOMIC_MOE,
        modules=(MEAN, NORMALIZE),
        tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512},
        settings={"max_seq_length": 40, "do_lower_case": False},
        general={"prompts": {"query": "search_query: ", "passage": "search_document: "}},
        has_own_reference=True,
    ),
}

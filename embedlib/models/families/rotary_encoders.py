"""Encoders with rotary positions: every token attends to every other, or to those in a window.

Source: defaults, traits and tensor names are those of the classes in transformers 5.5,
`models/<family>/{configuration,modeling}_<family>.py`; for `new` and `gte`, those of
huggingface.co/Alibaba-NLP/new-impl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from embedlib.models.encoder_parts import ROPE_KINDS
from embedlib.models.families.row import (
    Alternation,
    ExpertKeys,
    Family,
    HeadLayer,
    Key,
    MaskedHead,
    SequenceHead,
    cls_head,
)
from embedlib.models.families.tensor_names import (
    JINA_EMBEDDINGS_V3_TENSORS,
    MODERNBERT_TENSORS,
    NEW_TENSORS,
    NOMIC_BERT_TENSORS,
    NOMIC_MOE_TENSORS,
)

_MODERNBERT_HEAD: Final = (
    HeadLayer(
        tensors="head.dense",
        activation=Key("classifier_activation", "gelu"),
        has_bias=Key("classifier_bias", False),
    ),
    HeadLayer(tensors="head.norm", is_norm=True, has_bias=Key("norm_bias", False)),
)
# Those of the code that ModernBERT was trained with, which RuModernBERT and USER2 have beside those
# of the class. One of them is left out: the class would take sliding_window for half a window.
# Source: src/bert_layers/configuration_bert.py of github.com/AnswerDotAI/ModernBERT, and for the
# values the script there that converts its checkpoints.
_TRAINED_AS: Final[Mapping[str, tuple[object, ...]]] = {
    "activation_function": ("gelu", None),
    "attention_layer": ("rope", None),
    "bert_layer": ("prenorm", None),
    "causal_mask": (False, None),
    "embed_norm": (True, None),
    "embedding_layer": ("sans_pos", None),
    "final_norm": (True, None),
    "hidden_act": ("gelu", None),
    "local_attn_rotary_emb_dim": (None,),
    "mlp_layer": ("glu", None),
    "normalization": ("layernorm", None),
    "rotary_emb_dim": (None,),
    "rotary_emb_interleaved": (False, None),
    "rotary_emb_scale_base": (None,),
    "skip_first_prenorm": (True, None),
}
_TRAINING_KEYS: Final = frozenset(
    {
        "allow_embedding_resizing", "attn_out_bias", "attn_out_dropout_prob", "attn_qkv_bias",
        "compile_model", "deterministic_fa2", "embed_dropout_prob", "encoder_layer",
        "head_class_act", "head_class_bias", "head_class_dropout", "head_class_norm",
        "head_pred_act", "head_pred_bias", "head_pred_dropout", "head_pred_norm",
        "init_cutoff_factor", "init_method", "init_small_embedding", "init_std",
        "initial_attention_layer", "initial_bert_layer", "initial_mlp_layer",
        "local_attn_rotary_emb_base", "loss_function", "loss_kwargs", "masked_prediction",
        "mlp_dropout_prob", "mlp_in_bias", "mlp_out_bias", "norm_kwargs", "num_initial_layers",
        "pad_logits", "padding", "pooling_type", "rotary_emb_base", "type_vocab_size",
        "unpad_embeddings", "use_fa2", "use_sdpa_attn_mask",
    }
)  # fmt: skip
MODERNBERT: Final = Family(
    model_type="modernbert",
    tokenizer_class="TokenizersBackend",
    norm="layer_norm",
    norm_eps=Key("norm_eps", 1e-5),
    has_norm_bias=Key("norm_bias", False),
    norm_placement="pre",
    norms_embeddings=True,
    is_gated=True,
    activation=Key("hidden_activation", "gelu"),
    positions="rotary",
    rope_theta=Key("global_rope_theta", 160_000.0),
    window_rope_theta=Key("local_rope_theta", 10_000.0),
    windows="alternating",
    window=Key("local_attention", 128),
    alternation=Alternation(
        every=Key("global_attn_every_n_layers", 3), full="first", halves=True
    ),
    has_qkv_bias=Key("attention_bias", False),
    has_output_bias=Key("attention_bias", False),
    has_mlp_bias=Key("mlp_bias", False),
    fixed={
        "is_causal": (False, None),
        # The class would scale both ropes by it; no known model uses it.
        "rope_scaling": (None,),
        # Written by the scripts that converted the models; no class reads it. The last name is that
        # of granite-embedding-small-english-r2, whose positions are rotary as well.
        "position_embedding_type": ("absolute", "sans_pos", "rope", "relative_key_query", None),
        **_TRAINED_AS,
    },
    harmless=frozenset(
        {
            # The class reads only norm_eps; files have both.
            "layer_norm_eps", "initializer_cutoff_factor", "mlp_dropout", "embedding_dropout",
            "decoder_bias", "classifier_activation", "deterministic_flash_attn",
            "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
            "repad_logits_with_grad",
        }
    )
    | _TRAINING_KEYS,
    prefixes=("", "model.", "0.auto_model.", "auto_model."),
    tensors=MODERNBERT_TENSORS,
    ignored_tensors=("head.*", "decoder.*", "classifier.*"),
    sequence_head=SequenceHead(
        pooling=Key("classifier_pooling", "cls"),
        layers=(*_MODERNBERT_HEAD, HeadLayer(tensors="classifier")),
    ),
    masked_head=MaskedHead(
        layers=_MODERNBERT_HEAD, decoder="decoder", has_bias=Key("decoder_bias", True)
    ),
)  # fmt: skip

PLAIN_NOMIC_BERT: Final = Family(
    model_type="nomic_bert",
    norm="layer_norm",
    norm_eps=Key("layer_norm_eps", 1e-12),
    norm_placement="post",
    is_gated=True,
    activation="silu",
    positions="rotary",
    num_positions=("n_positions", "max_position_embeddings"),
    rope_theta=Key("rope_theta", 1000.0),
    # The model's own code implements no other kind.
    rope_kinds=("default",),
    num_token_types=Key("type_vocab_size", 2),
    head_dim=Key("head_dim"),
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    # Files contain the keys of the model's own code, those of transformers 5, or both.
    names={
        "hidden_size": ("n_embd",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "intermediate_size": ("n_inner",),
        "layer_norm_eps": ("layer_norm_epsilon",),
        "rope_theta": ("rotary_emb_base",),
    },
    implied={
        "n_embd": (
            "activation_function", "layer_norm_epsilon", "mlp_fc1_bias", "mlp_fc2_bias",
            "n_positions", "qkv_proj_bias", "rotary_emb_fraction",
        )
    },
    fixed={
        "hidden_act": ("silu", None),
        "activation_function": ("swiglu",),
        "rotary_emb_fraction": (1.0,),
        "rotary_emb_interleaved": (False, None),
        "rotary_emb_scale_base": (None,),
        "rotary_scaling_factor": (None,),
        "prenorm": (False, None),
        "parallel_block": (False, None),
        "use_rms_norm": (False, None),
        "causal": (False, None),
        "is_causal": (False, None),
        "qkv_proj_bias": (False,),
        "mlp_fc1_bias": (False,),
        "mlp_fc2_bias": (False,),
        "scale_attn_weights": (True, None),
        "scale_attn_by_inverse_layer_idx": (False, None),
        "reorder_and_upcast_attn": (False, None),
    },
    harmless=frozenset(
        {
            "attn_pdrop", "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln",
            "max_trained_positions", "pad_vocab_size_multiple", "parallel_block_tied_norm",
            "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
            "use_xentropy",
        }
    ),
    own_code={
        # CodeRankEmbed and snowflake-arctic-embed-m-long have copies.
        "AutoModel": (
            "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
            "modeling_hf_nomic_bert.NomicBertModel",
            "nomic-ai/nomic-embed-text-v1--modeling_hf_nomic_bert.NomicBertModel",
            "nomic-ai/CodeRankEmbed--modeling_hf_nomic_bert.NomicBertModel",
            "Snowflake/snowflake-arctic-embed-m-long--modeling_hf_nomic_bert.NomicBertModel",
        )
    },
    tokenizer_class="BertTokenizer",
    prefixes=("", "nomic_bert.", "0.auto_model.", "auto_model."),
    tensors=NOMIC_BERT_TENSORS,
    ignored_tensors=("*pooler.*", "cls.*", "classifier.*"),
)  # fmt: skip

# Source: NomicBertModel of huggingface.co/nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py.
NOMIC_MOE: Final = replace(
    PLAIN_NOMIC_BERT,
    name="nomic_bert-moe",
    chosen_by={"num_experts": ()},
    experts=ExpertKeys(
        count=Key("num_experts"), chosen=Key("moe_top_k"), every=Key("moe_every_n_layers")
    ),
    is_gated=False,
    activation="gelu",
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
    implied={
        "num_experts": (*PLAIN_NOMIC_BERT.implied["n_embd"], "moe_normalize_expert_weights"),
    },
    fixed={
        **PLAIN_NOMIC_BERT.fixed,
        "hidden_act": ("gelu", None),
        "activation_function": ("gelu",),
        "qkv_proj_bias": (True,),
        "mlp_fc1_bias": (True,),
        "mlp_fc2_bias": (True,),
        "moe_normalize_expert_weights": (False,),
        "expert_choice_router": (False, None),
        "num_shared_experts": (0, None),
        "ffn_div": (1, None),
    },
    harmless=PLAIN_NOMIC_BERT.harmless | {"moe_impl", "moe_resid_pdrop", "router_aux_loss_coef"},
    tokenizer_class="XLMRobertaTokenizer",
    tensors=NOMIC_MOE_TENSORS,
)
# Beyond the trained length the class takes a theta for the longest text of a batch, and keeps it
# for those that follow, so texts end there. Source: NomicBertDynamicNTKRotaryEmbedding in
# modeling_hf_nomic_bert.py.
NOMIC_LONG: Final = replace(
    PLAIN_NOMIC_BERT,
    name="nomic_bert-long",
    chosen_by={"rotary_scaling_factor": (2,)},
    num_positions=("max_trained_positions",),
    fixed={**PLAIN_NOMIC_BERT.fixed, "rotary_scaling_factor": (2,)},
    harmless=PLAIN_NOMIC_BERT.harmless | {"n_positions", "max_position_embeddings"},
)
NOMIC_BERT: Final = replace(PLAIN_NOMIC_BERT, own_rows=(NOMIC_MOE, NOMIC_LONG))

# The base of the model; its adapters of tasks are not merged here, so a folder that has them is
# refused by its tensors.
JINA_EMBEDDINGS_V3: Final = Family(
    model_type="jina_embeddings_v3",
    norm="layer_norm",
    norm_eps=Key("layer_norm_eps", 1e-5),
    norm_placement="post",
    is_gated=False,
    activation=Key("hidden_act", "gelu"),
    positions="rotary",
    rope_theta=Key("rope_theta", 20_000.0),
    num_token_types=Key("type_vocab_size", 1),
    fixed={"is_causal": (False, None)},
    tokenizer_class="XLMRobertaTokenizer",
    prefixes=("", "roberta.", "model.", "0.auto_model.", "auto_model."),
    tensors=JINA_EMBEDDINGS_V3_TENSORS,
    ignored_tensors=("*pooler.*", "lm_head.*", "classifier.*"),
)

# The custom code of gte's second generation uses the model_type "new".
NEW: Final = Family(
    model_type="new",
    norm="layer_norm",
    norm_eps=Key("layer_norm_eps", 1e-12),
    norm_placement="post",
    is_gated=True,
    activation=Key("hidden_act", "gelu"),
    positions="rotary",
    rope_theta=Key("rope_theta", 10_000.0),
    rope_kinds=("default", "ntk"),
    num_token_types=Key("type_vocab_size", 1),
    has_mlp_bias=False,
    has_down_bias=True,
    fixed={
        "position_embedding_type": ("rope",),
        "layer_norm_type": ("layer_norm",),
        "pack_qkv": (True,),
        "logn_attention_scale": (False,),
        "logn_attention_clip1": (False,),
        "is_causal": (False, None),
    },
    # These choose an implementation, not a result. Some files have strings here.
    harmless=frozenset({"unpad_inputs", "use_memory_efficient_attention"}),
    own_code={
        # Stella's folder has a copy.
        "AutoModel": (
            "Alibaba-NLP/new-impl--modeling.NewModel",
            "modeling.NewModel",
            "NovaSearch/stella_en_400M_v5--modeling.NewModel",
            "dunzhang/stella_en_400M_v5--modeling.NewModel",
        ),
        "AutoModelForSequenceClassification": (
            "Alibaba-NLP/new-impl--modeling.NewForSequenceClassification",
            "modeling.NewForSequenceClassification",
        ),
    },
    prefixes=("", "new.", "0.auto_model.", "auto_model."),
    tensors=NEW_TENSORS,
    ignored_tensors=("*pooler.*", "lm_head.*", "classifier.*"),
    sequence_head=cls_head("new.pooler.dense"),
)

# The first is a copy of that code under other names. The second is the class of transformers, which
# has another default theta, other kinds of rope, and a head.
ARCTIC_GTE: Final = replace(
    NEW,
    model_type="gte",
    name="gte-arctic",
    own_code={
        "AutoModel": (
            "modeling_hf_alibaba_nlp_gte.GteModel",
            "Snowflake/snowflake-arctic-embed-m-v2.0--modeling_hf_alibaba_nlp_gte.GteModel",
        )
    },
    prefixes=("", "gte.", "new.", "0.auto_model.", "auto_model."),
    sequence_head=None,
)
GTE: Final = replace(
    NEW,
    model_type="gte",
    rope_theta=Key("rope_theta", 160_000.0),
    rope_kinds=ROPE_KINDS,
    tokenizer_class="XLMRobertaTokenizer",
    own_code={},
    own_rows=(ARCTIC_GTE,),
    prefixes=ARCTIC_GTE.prefixes,
    sequence_head=cls_head("gte.pooler.dense"),
)

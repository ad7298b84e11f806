"""Families derived from BERT: every token attends to every other.

Source: defaults, traits and tensor names are those of the classes in transformers 5.5,
`models/<family>/{configuration,modeling}_<family>.py`; for `new` and `gte`, those of
huggingface.co/Alibaba-NLP/new-impl.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.models.families.row import Alternation, Family, HeadLayer, Key, SequenceHead
from embedlib.models.families.tensor_names import (
    DEBERTA_V2_TENSORS,
    DISTILBERT_TENSORS,
    ENCODER_TENSORS,
    JINA_EMBEDDINGS_V3_TENSORS,
    MODERNBERT_TENSORS,
    MPNET_TENSORS,
    NEW_TENSORS,
    NOMIC_BERT_TENSORS,
    XLM_ROBERTA_XL_TENSORS,
)
from embedlib.models.spec import ROPE_KINDS, PositionBias

BERT: Final = Family(
    model_type="bert",
    norm="layer_norm",
    norm_eps=Key("layer_norm_eps", 1e-12),
    norm_placement="post",
    is_gated=False,
    activation=Key("hidden_act", "gelu"),
    positions="learned",
    num_token_types=Key("type_vocab_size", 2),
    # BERT's class ignores is_causal; a file that sets it expects something else.
    fixed={"position_embedding_type": ("absolute",), "is_causal": (False, None)},
    tokenizer_class="BertTokenizer",
    prefixes=("", "bert.", "0.auto_model.", "auto_model."),
    tensors=ENCODER_TENSORS,
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "*pooler.*", "cls.*",
        "classifier.*", "qa_outputs.*",
    ),
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="bert.pooler.dense", activation="tanh"),
            HeadLayer(tensors="classifier"),
        ),
    ),
)  # fmt: skip

ROBERTA: Final = replace(
    BERT,
    model_type="roberta",
    positions="learned_after_padding",
    tokenizer_class="RobertaTokenizer",
    prefixes=("", "roberta.", "0.auto_model.", "auto_model."),
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "*pooler.*", "lm_head.*",
        "classifier.*", "qa_outputs.*",
    ),
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="classifier.dense", activation="tanh"),
            HeadLayer(tensors="classifier.out_proj"),
        ),
    ),
)  # fmt: skip

XLM_ROBERTA: Final = replace(
    ROBERTA, model_type="xlm-roberta", tokenizer_class="XLMRobertaTokenizer"
)

# The class of transformers sets what tokenizer.json does not, and leaves out its character map; the
# models were trained with tokenizer.json.
CAMEMBERT: Final = replace(ROBERTA, model_type="camembert", tokenizer_class="TokenizersBackend")

XLM_ROBERTA_XL: Final = replace(
    ROBERTA,
    model_type="xlm-roberta-xl",
    tokenizer_class="TokenizersBackend",
    norm_eps=Key("layer_norm_eps", 1e-5),
    norm_placement="pre",
    num_token_types=Key("type_vocab_size", 1),
    tensors=XLM_ROBERTA_XL_TENSORS,
)

ERNIE: Final = replace(
    BERT,
    model_type="ernie",
    fixed={**BERT.fixed, "use_task_id": (False, None)},
    harmless=frozenset({"task_type_vocab_size"}),
    prefixes=("", "ernie.", "0.auto_model.", "auto_model."),
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="ernie.pooler.dense", activation="tanh"),
            HeadLayer(tensors="classifier"),
        ),
    ),
)

ELECTRA: Final = replace(
    BERT,
    model_type="electra",
    # Smaller embeddings, as in the small models, pass through a matrix more.
    names={"hidden_size": ("embedding_size",)},
    implied={"hidden_size": ("embedding_size",)},
    harmless=frozenset({"summary_type", "summary_use_proj", "summary_last_dropout"}),
    prefixes=("", "electra.", "0.auto_model.", "auto_model."),
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "classifier.*",
        "discriminator_predictions.*", "generator_predictions.*", "generator_lm_head.*",
        "qa_outputs.*",
    ),
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="classifier.dense", activation="gelu"),
            HeadLayer(tensors="classifier.out_proj"),
        ),
    ),
)  # fmt: skip

DISTILBERT: Final = replace(
    BERT,
    model_type="distilbert",
    norm_eps=1e-12,
    activation=Key("activation", "gelu"),
    num_token_types=None,
    names={
        "hidden_size": ("dim",),
        "num_hidden_layers": ("n_layers",),
        "num_attention_heads": ("n_heads",),
        "intermediate_size": ("hidden_dim",),
    },
    fixed={"is_causal": (False, None)},
    # sinusoidal_pos_embds sets how the table was initialized; the weights contain the table.
    harmless=frozenset(
        {"dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"}
    ),
    prefixes=("", "distilbert.", "0.auto_model.", "auto_model."),
    tensors=DISTILBERT_TENSORS,
    ignored_tensors=(
        "*embeddings.position_ids", "vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*",
        "pre_classifier.*", "classifier.*", "qa_outputs.*",
    ),
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="pre_classifier", activation="relu"),
            HeadLayer(tensors="classifier"),
        ),
    ),
)  # fmt: skip

MPNET: Final = replace(
    BERT,
    model_type="mpnet",
    positions="learned_after_padding",
    # The class does not read the two numbers from config.json; its padding id is always 1.
    position_bias=PositionBias(num_buckets=32, max_distance=128),
    num_token_types=None,
    fixed={
        "relative_attention_num_buckets": (32, None),
        "pad_token_id": (1,),
        "is_causal": (False, None),
    },
    tokenizer_class="MPNetTokenizer",
    prefixes=("", "mpnet.", "0.auto_model.", "auto_model."),
    tensors=MPNET_TENSORS,
    ignored_tensors=(
        "*embeddings.position_ids", "*pooler.*", "lm_head.*", "classifier.*", "qa_outputs.*",
    ),
    sequence_head=ROBERTA.sequence_head,
)  # fmt: skip

# DeBERTa-v3 and mDeBERTa. The class of transformers 5 leaves out the character map of
# tokenizer.json, with which the models were trained.
DEBERTA_V2: Final = replace(
    BERT,
    model_type="deberta-v2",
    norm_eps=Key("layer_norm_eps", 1e-7),
    positions="relative",
    relative_buckets=Key("position_buckets"),
    projections=3,
    num_token_types=Key("type_vocab_size", 0),
    names={"hidden_size": ("pooler_hidden_size",)},
    # The defaults are those of the first DeBERTa-v2, which works otherwise.
    implied={
        "model_type": (
            "relative_attention", "position_biased_input", "share_att_key", "norm_rel_ebd",
            "pos_att_type", "position_buckets",
        )
    },
    fixed={
        "relative_attention": (True,),
        "position_biased_input": (False,),
        "share_att_key": (True,),
        "norm_rel_ebd": ("layer_norm",),
        "pos_att_type": ("p2c|c2p", "c2p|p2c", ["p2c", "c2p"], ["c2p", "p2c"]),
        "max_relative_positions": (-1, None),
        "conv_kernel_size": (0, None),
        "is_causal": (False, None),
    },
    harmless=frozenset({"pooler_dropout", "legacy", "pooler_hidden_act"}),
    tokenizer_class="TokenizersBackend",
    prefixes=("", "deberta.", "0.auto_model.", "auto_model."),
    tensors=DEBERTA_V2_TENSORS,
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.position_embeddings.weight", "pooler.*", "cls.*",
        "lm_predictions.*", "mask_predictions.*", "classifier.*", "qa_outputs.*",
    ),
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="pooler.dense", activation=Key("pooler_hidden_act", "gelu")),
            HeadLayer(tensors="classifier"),
        ),
    ),
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
        # Written by the script that converted the first models; no class reads it.
        "position_embedding_type": ("absolute", "sans_pos", None),
    },
    harmless=frozenset(
        {
            # The class reads only norm_eps; files have both.
            "layer_norm_eps", "initializer_cutoff_factor", "mlp_dropout", "embedding_dropout",
            "decoder_bias", "classifier_activation", "deterministic_flash_attn",
            "sparse_prediction", "sparse_pred_ignore_index", "reference_compile",
            "repad_logits_with_grad",
        }
    ),
    prefixes=("", "model.", "0.auto_model.", "auto_model."),
    tensors=MODERNBERT_TENSORS,
    ignored_tensors=("head.*", "decoder.*", "classifier.*"),
    sequence_head=SequenceHead(
        pooling=Key("classifier_pooling", "cls"),
        layers=(
            HeadLayer(
                tensors="head.dense",
                activation=Key("classifier_activation", "gelu"),
                has_bias=Key("classifier_bias", False),
            ),
            HeadLayer(tensors="head.norm", is_norm=True, has_bias=Key("norm_bias", False)),
            HeadLayer(tensors="classifier"),
        ),
    ),
)  # fmt: skip

NOMIC_BERT: Final = Family(
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
    own_code={"AutoModel": ("nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",)},
    tokenizer_class="BertTokenizer",
    prefixes=("", "nomic_bert.", "0.auto_model.", "auto_model."),
    tensors=NOMIC_BERT_TENSORS,
    ignored_tensors=("*pooler.*", "cls.*", "classifier.*"),
)  # fmt: skip

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
        "AutoModel": ("Alibaba-NLP/new-impl--modeling.NewModel",),
        "AutoModelForSequenceClassification": (
            "Alibaba-NLP/new-impl--modeling.NewForSequenceClassification",
        ),
    },
    prefixes=("", "new.", "0.auto_model.", "auto_model."),
    tensors=NEW_TENSORS,
    ignored_tensors=("*pooler.*", "lm_head.*", "classifier.*"),
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="new.pooler.dense", activation="tanh"),
            HeadLayer(tensors="classifier"),
        ),
    ),
)

# The first is a copy of that code under other names. The second is the class of transformers, which
# has another default theta, other kinds of rope, and a head.
ARCTIC_GTE: Final = replace(
    NEW,
    model_type="gte",
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
    sequence_head=SequenceHead(
        pooling="cls",
        layers=(
            HeadLayer(tensors="gte.pooler.dense", activation="tanh"),
            HeadLayer(tensors="classifier"),
        ),
    ),
)

"""Families derived from BERT, with positions as it has them: every token attends to every other.

Source: defaults, traits and tensor names are those of the classes in transformers 5.5,
`models/<family>/{configuration,modeling}_<family>.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.models.families.alibi_encoders import JINA_BERT, JINA_CODE
from embedlib.models.families.row import Family, Key, cls_head, masked_head
from embedlib.models.families.tensor_names import (
    ALBERT_TENSORS,
    DEBERTA_V2_TENSORS,
    DISTILBERT_TENSORS,
    ENCODER_TENSORS,
    MPNET_TENSORS,
    XLM_ROBERTA_FLASH_TENSORS,
    XLM_ROBERTA_XL_TENSORS,
)

PLAIN_BERT: Final = Family(
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
    sequence_head=cls_head("bert.pooler.dense"),
    masked_head=masked_head(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder", "cls.predictions.bias", Key("hidden_act", "gelu"),
    ),
)  # fmt: skip
BERT: Final = replace(
    PLAIN_BERT,
    # Of TinyBERT, whose folders, and those made of them, as rubert-tiny2, are loaded by this class.
    # The last two name the pooling of the package uniem, with which m3e was trained; the pooling of
    # sentence-transformers has its own file.
    harmless=frozenset(
        {
            "cell", "emb_size", "pre_trained", "structure", "training",
            "uniem_embedding_strategy", "uniem_pooling_strategy",
        }
    ),
    own_rows=(JINA_BERT, JINA_CODE),
)  # fmt: skip

ROBERTA: Final = replace(
    PLAIN_BERT,
    model_type="roberta",
    positions="learned_after_padding",
    harmless=frozenset({"is_gpu"}),  # of ChemBERTa, and what is trained from it
    tokenizer_class="RobertaTokenizer",
    prefixes=("", "roberta.", "0.auto_model.", "auto_model."),
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "*pooler.*", "lm_head.*",
        "classifier.*", "qa_outputs.*",
    ),
    sequence_head=cls_head("classifier.dense", last="classifier.out_proj"),
    masked_head=masked_head(
        "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"
    ),
)  # fmt: skip

PLAIN_XLM_ROBERTA: Final = replace(
    ROBERTA, model_type="xlm-roberta", tokenizer_class="XLMRobertaTokenizer"
)

# The same under other names. Source: configuration_xlm_roberta.py and modeling_xlm_roberta.py of
# huggingface.co/jinaai/xlm-roberta-flash-implementation.
_FLASH: Final = (
    "jinaai/jina-reranker-v2-base-multilingual--modeling_xlm_roberta.",
    "jinaai/xlm-roberta-flash-implementation--modeling_xlm_roberta.",
    "modeling_xlm_roberta.",
)
XLM_ROBERTA_FLASH: Final = replace(
    PLAIN_XLM_ROBERTA,
    name="xlm-roberta-flash",
    fixed={
        **PLAIN_BERT.fixed,
        "emb_pooler": (None,),
        "truncate_dim": (None,),
        "load_trained_adapters": (False, None),
        "lora_adaptations": (None,),
    },
    harmless=frozenset({"lora_alpha", "lora_dropout_p", "lora_main_params_trainable", "lora_rank"}),
    own_code={
        "AutoModel": tuple(f"{place}XLMRobertaModel" for place in _FLASH),
        "AutoModelForSequenceClassification": tuple(
            f"{place}XLMRobertaForSequenceClassification" for place in _FLASH
        ),
    },
    tensors=XLM_ROBERTA_FLASH_TENSORS,
    masked_head=None,
)
XLM_ROBERTA: Final = replace(PLAIN_XLM_ROBERTA, own_rows=(XLM_ROBERTA_FLASH,))

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

_ERNIE: Final = replace(
    PLAIN_BERT,
    model_type="ernie",
    prefixes=("", "ernie.", "0.auto_model.", "auto_model."),
    sequence_head=cls_head("ernie.pooler.dense"),
)
# ERNIE 3; nobody passes a task, so that all tokens have that of the first row.
ERNIE_TASKS: Final = replace(
    _ERNIE,
    name="ernie-tasks",
    chosen_by={"use_task_id": (True,)},
    fixed={**PLAIN_BERT.fixed, "use_task_id": (True,)},
    num_task_types=Key("task_type_vocab_size", 3),
)
ERNIE: Final = replace(
    _ERNIE,
    fixed={**PLAIN_BERT.fixed, "use_task_id": (False, None)},
    harmless=frozenset({"task_type_vocab_size"}),
    own_rows=(ERNIE_TASKS,),
)

ELECTRA: Final = replace(
    PLAIN_BERT,
    model_type="electra",
    embedding_size=Key("embedding_size", 128),
    harmless=frozenset({"summary_type", "summary_use_proj", "summary_last_dropout"}),
    prefixes=("", "electra.", "0.auto_model.", "auto_model."),
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "classifier.*",
        "discriminator_predictions.*", "generator_predictions.*", "generator_lm_head.*",
        "qa_outputs.*",
    ),
    sequence_head=cls_head("classifier.dense", "gelu", "classifier.out_proj"),
    masked_head=masked_head(
        "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"
    ),
)  # fmt: skip

# All layers have the same weights. The tokenizer class of transformers sets what tokenizer.json
# has.
ALBERT: Final = replace(
    PLAIN_BERT,
    model_type="albert",
    activation=Key("hidden_act", "gelu_new"),
    embedding_size=Key("embedding_size", 128),
    fixed={**PLAIN_BERT.fixed, "num_hidden_groups": (1, None), "inner_group_num": (1, None)},
    # Of the first release, whose class does not read them.
    harmless=frozenset(
        {
            "classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type",
            "num_memory_blocks",
        }
    ),
    tokenizer_class="TokenizersBackend",
    prefixes=("", "albert.", "0.auto_model.", "auto_model."),
    tensors=ALBERT_TENSORS,
    ignored_tensors=(
        "*embeddings.position_ids", "*embeddings.token_type_ids", "*pooler.*", "predictions.*",
        "sop_classifier.*", "classifier.*", "qa_outputs.*",
    ),
    sequence_head=cls_head("albert.pooler"),
    masked_head=masked_head(
        "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias",
        Key("hidden_act", "gelu_new"),
    ),
)  # fmt: skip

DISTILBERT: Final = replace(
    PLAIN_BERT,
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
    sequence_head=cls_head("pre_classifier", "relu"),
    masked_head=masked_head(
        "vocab_transform", "vocab_layer_norm", "vocab_projector",
        activation=Key("activation", "gelu"),
    ),
)  # fmt: skip

MPNET: Final = replace(
    PLAIN_BERT,
    model_type="mpnet",
    positions="learned_after_padding",
    # The class does not read the two numbers from config.json; its padding id is always 1.
    bias_buckets=32,
    bias_distance=128,
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
    masked_head=ROBERTA.masked_head,
)  # fmt: skip

# DeBERTa-v3 and mDeBERTa. The class of transformers 5 leaves out the character map of
# tokenizer.json, with which the models were trained.
DEBERTA_V2: Final = replace(
    PLAIN_BERT,
    model_type="deberta-v2",
    norm_eps=Key("layer_norm_eps", 1e-7),
    positions="relative",
    relative_buckets=Key("position_buckets"),
    projections=3,
    head_dim=Key("attention_head_size"),
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
    sequence_head=cls_head("pooler.dense", Key("pooler_hidden_act", "gelu")),
    masked_head=None,
)  # fmt: skip

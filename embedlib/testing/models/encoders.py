"""Tiny models with bidirectional attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from embedlib.testing.models.variant import (
    MEAN,
    NORMALIZE,
    SIZES,
    ST6,
    ST6_BASE,
    ST6_SETTINGS,
    Json,
    TinyModule,
    TinyVariant,
    dense,
    pooling,
    projection,
)

BERT: Final[Json] = SIZES | {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}
ROBERTA: Final[Json] = BERT | {
    "model_type": "roberta",
    "architectures": ["RobertaModel"],
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}
MPNET: Final[Json] = SIZES | {
    "model_type": "mpnet",
    "max_position_embeddings": 46,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "relative_attention_num_buckets": 32,
}
DEBERTA_V2: Final[Json] = SIZES | {
    "model_type": "deberta-v2",
    "architectures": ["DebertaV2Model"],
    "max_position_embeddings": 48,
    "type_vocab_size": 0,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
    "relative_attention": True,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "max_relative_positions": -1,
    "position_biased_input": False,
    "pad_token_id": 0,
}
ELECTRA: Final[Json] = BERT | {
    "model_type": "electra",
    "architectures": ["ElectraModel"],
    "embedding_size": 32,
}
ALBERT: Final[Json] = BERT | {
    "model_type": "albert",
    "architectures": ["AlbertModel"],
    "embedding_size": 16,
    "hidden_act": "gelu_new",
    # As in paraphrase-albert-small-v2.
    "classifier_dropout_prob": 0.1,
    "down_scale_factor": 1,
    "gap_size": 0,
    "inner_group_num": 1,
    "net_structure_type": 0,
    "num_hidden_groups": 1,
    "num_memory_blocks": 0,
}
T5: Final[Json] = {
    "model_type": "t5",
    "architectures": ["T5EncoderModel"],
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 20,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "is_encoder_decoder": True,
    "n_positions": 512,
    "dropout_rate": 0.1,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}

ENCODERS: Final[Mapping[str, TinyVariant]] = {
    "bert": TinyVariant(
        tokenizer="bert",
        config=BERT,
        modules=(MEAN, NORMALIZE),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
        settings={"max_seq_length": 24, "do_lower_case": False},
        general={"__version__": {"sentence_transformers": "2.0.0"}},
    ),
    "bert-bare": TinyVariant(
        tokenizer="bert",
        config=BERT | {"hidden_act": "relu"},
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 40},
        prefix="bert.",
    ),
    "bert-cls-dense": TinyVariant(
        tokenizer="bert",
        config=BERT | {"hidden_act": "gelu_new"},
        transformer_type=ST6_BASE + "transformer.Transformer",
        transformer_path="0_Transformer",
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 30},
        settings=ST6_SETTINGS,
        modules=(
            TinyModule(
                type=ST6 + "pooling.Pooling",
                path="1_Pooling",
                config={
                    "embedding_dimension": 32,
                    "pooling_mode": "cls",
                    "include_prompt": True,
                },
            ),
            dense("2_Dense", 32, 20, "torch.nn.modules.activation.Tanh", bias=True),
            TinyModule(
                type=ST6 + "layer_norm.LayerNorm", path="3_LayerNorm", config={"dimension": 20}
            ),
            TinyModule(type=ST6_BASE + "normalize.Normalize", path="4_Normalize"),
        ),
        general={
            "model_type": "SentenceTransformer",
            "prompts": {"query": "query: ", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "dot",
            "truncate_dim": 16,
        },
    ),
    "bert-concat": TinyVariant(
        tokenizer="bert-cased",
        config=BERT | {"hidden_act": "gelu_pytorch_tanh"},
        modules=(
            pooling(
                "cls_token",
                "max_tokens",
                "mean_tokens",
                "mean_sqrt_len_tokens",
                "weightedmean_tokens",
                "lasttoken",
            ),
        ),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
        settings={"max_seq_length": 30, "do_lower_case": True},
    ),
    "bert-prompt": TinyVariant(
        tokenizer="bert",
        config=BERT,
        modules=(pooling("mean_tokens", "weightedmean_tokens", include_prompt=False),),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
        settings={"max_seq_length": 36, "do_lower_case": False},
        general={
            "prompts": {
                "query": "Represent this sentence for search: ",
                "passage": "Represent the passage: ",
            },
            "default_prompt_name": "passage",
            "similarity_fn_name": "cosine",
        },
    ),
    "roberta": TinyVariant(
        tokenizer="roberta",
        config=ROBERTA,
        modules=(
            MEAN,
            projection("2_Dense", 32, 48),
        ),
        tokenizer_config={"tokenizer_class": "RobertaTokenizer", "model_max_length": 46},
        prefix="roberta.",
    ),
    "xlm-roberta": TinyVariant(
        tokenizer="xlm-roberta",
        config=ROBERTA | {"model_type": "xlm-roberta", "num_hidden_layers": 3},
        modules=(pooling("cls_token"), NORMALIZE),
        tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"},
        settings_name="sentence_xlm-roberta_config.json",
        settings={"max_seq_length": 40},
        general={"prompts": {"query": "query: ", "passage": "passage: "}},
    ),
    "distilbert": TinyVariant(
        tokenizer="bert",
        config={
            "model_type": "distilbert",
            "architectures": ["DistilBertForMaskedLM"],
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 56,
            "max_position_embeddings": 44,
            "activation": "gelu",
            "sinusoidal_pos_embds": False,
            "tie_weights_": True,
            "dropout": 0.1,
            "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2,
            "pad_token_id": 0,
        },
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "DistilBertTokenizer", "model_max_length": 512},
        settings_name="sentence_distilbert_config.json",
        settings={"max_seq_length": 40, "do_lower_case": False},
        prefix="distilbert.",
    ),
    "mpnet": TinyVariant(
        tokenizer="mpnet",
        config=MPNET | {"architectures": ["MPNetForMaskedLM"]},
        modules=(MEAN, NORMALIZE),
        tokenizer_config={"tokenizer_class": "MPNetTokenizer", "model_max_length": 512},
        settings={"max_seq_length": 43, "do_lower_case": False},
        prefix="mpnet.",
    ),
    "camembert": TinyVariant(
        tokenizer="xlm-roberta",
        config=ROBERTA | {"model_type": "camembert", "architectures": ["CamembertModel"]},
        modules=(MEAN,),
        tokenizer_config={"model_max_length": 46},
        prefix="roberta.",
    ),
    "xlm-roberta-xl": TinyVariant(
        tokenizer="xlm-roberta",
        config=ROBERTA | {"model_type": "xlm-roberta-xl", "architectures": ["XLMRobertaXLModel"]},
        modules=(MEAN,),
        tokenizer_config={"model_max_length": 46},
        prefix="roberta.",
    ),
    "ernie": TinyVariant(
        tokenizer="bert",
        config=BERT
        | {
            "model_type": "ernie",
            "architectures": ["ErnieModel"],
            "use_task_id": False,
            "task_type_vocab_size": 3,
        },
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
    ),
    "ernie-tasks": TinyVariant(
        tokenizer="bert",
        config=BERT
        | {
            "model_type": "ernie",
            "architectures": ["ErnieModel"],
            "use_task_id": True,
            "task_type_vocab_size": 3,
            "type_vocab_size": 4,
        },
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
        prefix="ernie.",
    ),
    "electra": TinyVariant(
        tokenizer="bert",
        config=ELECTRA,
        modules=(MEAN,),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
        prefix="electra.",
    ),
    "albert": TinyVariant(
        tokenizer="bert",
        config=ALBERT,
        modules=(MEAN,),
        tokenizer_config={"model_max_length": 48},
    ),
    "deberta-v2": TinyVariant(
        tokenizer="bert",
        config=DEBERTA_V2,
        modules=(MEAN,),
        tokenizer_config={"model_max_length": 48},
        prefix="deberta.",
    ),
    # Like sentence-t5 and gtr-t5.
    "t5": TinyVariant(
        tokenizer="t5",
        config=T5,
        modules=(MEAN, projection("2_Dense", 32, 24), replace(NORMALIZE, path="3_Normalize")),
        tokenizer_config={"tokenizer_class": "T5Tokenizer", "model_max_length": 40},
    ),
    # Like instructor on a T5 of version 1.1.
    "t5-gated": TinyVariant(
        tokenizer="t5",
        config=T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        modules=(pooling("mean_tokens", include_prompt=False), NORMALIZE),
        tokenizer_config={"tokenizer_class": "T5Tokenizer"},
        settings={"max_seq_length": 40, "do_lower_case": False},
        general={"prompts": {"query": "Represent the question: "}},
    ),
}

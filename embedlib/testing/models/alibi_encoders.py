"""Tiny encoders with ALiBi, whose folders name a class of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.testing.models.variant import Json, TinyVariant, pooling

JINA_BERT: Final[Json] = {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    },
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
    "model_max_length": 64,
}
_CODE: Final = "jinaai/jina-bert-v2-qk-post-norm--"
JINA_CODE: Final[Json] = JINA_BERT | {
    "auto_map": {
        "AutoConfig": f"{_CODE}configuration_bert.JinaBertConfig",
        "AutoModel": f"{_CODE}modeling_bert.JinaBertModel",
    },
    "hidden_size": 30,
    "num_attention_heads": 5,
    "layer_norm_eps": 1e-5,
}

ALIBI_ENCODERS: Final[Mapping[str, TinyVariant]] = {
    # Like jina-embeddings-v2-base-en, with a number of heads that is no power of two.
    "jina_bert": TinyVariant(
        tokenizer="bert",
        config=JINA_BERT,
        modules=(pooling("mean_tokens", dim=36),),
        tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 64},
        settings={"max_seq_length": 64, "do_lower_case": False},
        has_own_reference=True,
    ),
    # Like jina-embeddings-v2-base-code.
    "jina_bert-code": TinyVariant(
        tokenizer="roberta",
        config=JINA_CODE,
        modules=(pooling("mean_tokens", dim=30),),
        tokenizer_config={"tokenizer_class": "RobertaTokenizer", "model_max_length": 64},
        settings={"max_seq_length": 64, "do_lower_case": False},
        has_own_reference=True,
    ),
}

"""BERT with ALiBi and a gated MLP: rows of `bert` that the class in `auto_map` chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.models.families.row import Family, Key, cls_head
from embedlib.models.families.tensor_names import JINA_BERT_TENSORS, JINA_CODE_TENSORS

# Source: JinaBertModel of huggingface.co/jinaai/jina-bert-implementation, modeling_bert.py.
JINA_BERT: Final = Family(
    model_type="bert",
    name="jina_bert",
    norm="layer_norm",
    norm_eps=Key("layer_norm_eps", 1e-12),
    norm_placement="post",
    is_gated=True,
    # That of feed_forward_type; the class does not read hidden_act.
    activation="gelu",
    positions="bias",
    has_alibi=True,
    num_token_types=Key("type_vocab_size", 2),
    has_mlp_bias=False,
    has_down_bias=True,
    implied={"auto_map": ("position_embedding_type", "feed_forward_type")},
    fixed={
        "position_embedding_type": ("alibi",),
        "feed_forward_type": ("geglu",),
        "hidden_act": ("gelu", None),
        "is_causal": (False, None),
    },
    # The pooling of the class's own encode; modules.json has that of the vectors.
    harmless=frozenset({"emb_pooler", "model_max_length"}),
    own_code={
        "AutoModel": (
            "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
            "modeling_bert.JinaBertModel",
        ),
        "AutoModelForSequenceClassification": (
            "jinaai/jina-bert-implementation--modeling_bert.JinaBertForSequenceClassification",
            "modeling_bert.JinaBertForSequenceClassification",
        ),
    },
    tokenizer_class="BertTokenizer",
    prefixes=("", "bert.", "0.auto_model.", "auto_model."),
    tensors=JINA_BERT_TENSORS,
    ignored_tensors=("*embeddings.position_ids", "*pooler.*", "cls.*"),
    # That of BERT. Source: JinaBertClassificationHead of text-embeddings-inference,
    # backends/candle/src/models/jina.rs.
    sequence_head=cls_head("bert.pooler.dense"),
)

# The same with two norms more. Source: JinaBertModel of
# huggingface.co/jinaai/jina-bert-v2-qk-post-norm, modeling_bert.py, as restated by
# text-embeddings-inference, backends/python/server/text_embeddings_server/models/jinaBert_model.py
# and backends/candle/src/models/jina_code.rs.
JINA_CODE: Final = replace(
    JINA_BERT,
    name="jina_bert-code",
    has_qk_norm=True,
    qk_norm_joins_heads=True,
    norms_attention_twice=True,
    own_code={"AutoModel": ("jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel",)},
    tensors=JINA_CODE_TENSORS,
    sequence_head=None,
)

"""Tiny rerankers, reward models and classifiers: a transformer with the head of its class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from embedlib.testing.models.decoders import DECODER, EUROBERT, GEMMA2, QWEN3
from embedlib.testing.models.encoders import (
    BERT,
    DEBERTA_V2,
    ELECTRA,
    MPNET,
    ROBERTA,
)
from embedlib.testing.models.rotary_encoders import GTE_NATIVE, MODERNBERT, NEW
from embedlib.testing.models.variant import (
    IDENTITY,
    ST6,
    ST6_BASE,
    ST6_SETTINGS,
    Json,
    TinyModule,
    TinyVariant,
    dense,
)

EMOTIONS: Final = ("admiration", "anger", "joy", "relief", "surprise", "neutral")


def _labels(*names: str) -> Json:
    """Return the keys of config.json that name the labels."""
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def _scoring(config: Json, name: str, tokenizer: str, **fields: Any) -> TinyVariant:
    """Return a variant whose config.json names this class; `fields` are fields of TinyVariant."""
    defaults: dict[str, Any] = {
        "tokenizer_config": {"model_max_length": config["max_position_embeddings"]}
    }
    return TinyVariant(
        tokenizer=tokenizer,
        config=config | {"architectures": [name]},
        with_head=True,
        **(defaults | fields),
    )


def _cross_encoder(base: TinyVariant, activation: str, *modules: TinyModule) -> TinyVariant:
    """Return a variant in the format that sentence-transformers 6 saves."""
    is_lm = bool(modules)
    return replace(
        base,
        transformer_type=ST6_BASE + "transformer.Transformer",
        modules=modules,
        has_module_list=True,
        settings={
            "transformer_task": "text-generation" if is_lm else "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "causal_logits" if is_lm else "scores",
        },
        general={
            "__version__": {"sentence_transformers": "6.2.0"},
            "activation_fn": activation,
            "default_prompt_name": None,
            "model_type": "CrossEncoder",
            "prompts": {},
        },
    )


def _modular(*modules: TinyModule) -> TinyVariant:
    """Return a ModernBERT with a head of separate modules, as sentence-transformers saves it."""
    base = _scoring(MODERNBERT, "ModernBertModel", "bert")
    variant = _cross_encoder(base, SIGMOID, *modules)
    return replace(variant, settings=ST6_SETTINGS)


def _logit_score(true_token_id: int, false_token_id: int | None) -> TinyModule:
    return TinyModule(
        type="sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
        path="1_LogitScore",
        config={
            "true_token_id": true_token_id,
            "false_token_id": false_token_id,
            "module_input_name": "causal_logits",
        },
    )


SIGMOID: Final = "torch.nn.modules.activation.Sigmoid"
DISTILBERT: Final[Json] = {
    "model_type": "distilbert",
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": 48,
    "activation": "gelu",
    "pad_token_id": 0,
}
BERT_TOKENIZER: Final[Json] = {"tokenizer_class": "BertTokenizer", "model_max_length": 48}
BERT_RERANKER: Final = _scoring(
    BERT | _labels("LABEL_0") | {"sbert_ce_default_activation_function": IDENTITY},
    "BertForSequenceClassification",
    "bert",
    tokenizer_config=BERT_TOKENIZER,
    prefix="bert.",
)

HEADS: Final[Mapping[str, TinyVariant]] = {
    # In the format of the rerankers trained on MS MARCO.
    "bert-reranker": BERT_RERANKER,
    "bert-cross-encoder": _cross_encoder(BERT_RERANKER, SIGMOID),
    # The model has two token types, but its tokenizer returns none.
    "bert-untyped": replace(
        BERT_RERANKER,
        tokenizer_config={
            "model_max_length": 48,
            "model_input_names": ["input_ids", "attention_mask"],
        },
    ),
    "bert-classifier": _scoring(
        BERT
        | _labels("positive", "neutral", "negative")
        | {"problem_type": "single_label_classification", "hidden_act": "gelu_new"},
        "BertForSequenceClassification",
        "bert",
        # With a list of inputs, the tokenizer's class does not matter.
        tokenizer_config={
            "model_max_length": 48,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        },
        prefix="bert.",
    ),
    "roberta-emotions": _scoring(
        ROBERTA | _labels(*EMOTIONS) | {"problem_type": "multi_label_classification"},
        "RobertaForSequenceClassification",
        "roberta",
        tokenizer_config={"model_max_length": 46},
        prefix="roberta.",
    ),
    "xlm-roberta-reranker": _scoring(
        ROBERTA
        | _labels("LABEL_0")
        | {
            "model_type": "xlm-roberta",
            "sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"},
        },
        "XLMRobertaForSequenceClassification",
        "xlm-roberta",
        tokenizer_config={"model_max_length": 46},
        prefix="roberta.",
        dtype="F16",
    ),
    # Without labels in config.json, which means two.
    "distilbert-classifier": _scoring(
        DISTILBERT, "DistilBertForSequenceClassification", "bert", prefix="distilbert."
    ),
    "mpnet-regression": _scoring(
        MPNET | _labels("toxicity", "irony") | {"problem_type": "regression"},
        "MPNetForSequenceClassification",
        "mpnet",
        tokenizer_config={"model_max_length": 44},
        prefix="mpnet.",
    ),
    "modernbert-reranker": _scoring(
        MODERNBERT
        | _labels("LABEL_0")
        | {"classifier_pooling": "mean", "classifier_activation": "gelu"},
        "ModernBertForSequenceClassification",
        "bert",
        prefix="model.",
    ),
    "modernbert-classifier": _scoring(
        MODERNBERT
        | _labels("yes", "no")
        | {
            "classifier_pooling": "cls",
            "classifier_activation": "silu",
            "classifier_bias": True,
            "norm_bias": True,
        },
        "ModernBertForSequenceClassification",
        "bert",
        prefix="model.",
    ),
    # Like gte-multilingual-reranker-base.
    "new-reranker": _scoring(
        NEW | _labels("LABEL_0") | {"type_vocab_size": 1, "pad_token_id": 1},
        "NewForSequenceClassification",
        "xlm-roberta",
        prefix="new.",
    ),
    "llama-reward": _scoring(
        DECODER | _labels("LABEL_0") | {"pad_token_id": 1},
        "LlamaForSequenceClassification",
        "begin",
        prefix="model.",
        dtype="BF16",
        num_shards=2,
    ),
    # The last token of every text is the padding token, which the class skips.
    "qwen2-classifier": _scoring(
        DECODER | _labels("a", "b", "c") | {"model_type": "qwen2", "pad_token_id": 0},
        "Qwen2ForSequenceClassification",
        "end",
        prefix="model.",
    ),
    "mistral-reward": _scoring(
        DECODER
        | _labels("LABEL_0")
        | {"model_type": "mistral", "sliding_window": 6, "pad_token_id": 2},
        "MistralForSequenceClassification",
        "mistral",
        prefix="model.",
    ),
    "gemma2-reranker": _scoring(
        GEMMA2 | _labels("LABEL_0"),
        "Gemma2ForSequenceClassification",
        "gemma",
        prefix="model.",
    ),
    "qwen3-asked": _scoring(
        QWEN3
        | _labels("LABEL_0")
        | {"max_position_embeddings": 400, "pad_token_id": 0, "tie_word_embeddings": False},
        "Qwen3ForSequenceClassification",
        "chat",
        prefix="model.",
        template="qwen3-reranker",
    ),
    "qwen3-answers": _scoring(
        QWEN3 | {"max_position_embeddings": 400},
        "Qwen3ForCausalLM",
        "chat",
        prefix="model.",
        template="qwen3-reranker",
    ),
    "qwen2-answers": _scoring(
        DECODER
        | {"model_type": "qwen2", "max_position_embeddings": 400, "tie_word_embeddings": False},
        "Qwen2ForCausalLM",
        "chat",
        prefix="model.",
        template="mxbai-rerank-v2",
    ),
    "qwen3-logit-score": _cross_encoder(
        _scoring(QWEN3, "Qwen3ForCausalLM", "chat", prefix="model.", dtype="BF16"),
        SIGMOID,
        _logit_score(300, 17),
    ),
    "llama-logit-score": _cross_encoder(
        _scoring(
            DECODER | {"tie_word_embeddings": False},
            "LlamaForCausalLM",
            "begin",
            prefix="model.",
            num_shards=2,
        ),
        IDENTITY,
        _logit_score(40, None),
    ),
    # Like ettin-reranker.
    "modernbert-modules": _modular(
        TinyModule(
            type=ST6 + "pooling.Pooling",
            path="1_Pooling",
            config={"embedding_dimension": 36, "pooling_mode": "cls", "include_prompt": True},
        ),
        dense("2_Dense", 36, 24, "torch.nn.modules.activation.GELU"),
        TinyModule(type=ST6 + "layer_norm.LayerNorm", path="3_LayerNorm", config={"dimension": 24}),
        dense("4_Dense", 24, 1, IDENTITY, bias=True, module_output_name="scores"),
    ),
    "electra-reranker": _scoring(
        # Narrower, as in electra-small.
        ELECTRA | _labels("LABEL_0") | {"embedding_size": 16},
        "ElectraForSequenceClassification",
        "bert",
        tokenizer_config=BERT_TOKENIZER,
        prefix="electra.",
    ),
    # Like the zero-shot classifiers.
    "deberta-v2-classifier": _scoring(
        DEBERTA_V2 | _labels("entailment", "neutral", "contradiction"),
        "DebertaV2ForSequenceClassification",
        "bert",
        tokenizer_config={
            "model_max_length": 48,
            "model_input_names": ["input_ids", "attention_mask"],
        },
        prefix="deberta.",
    ),
    "gte-reranker": _scoring(
        GTE_NATIVE | _labels("LABEL_0"),
        "GteForSequenceClassification",
        "xlm-roberta",
        prefix="gte.",
    ),
    "eurobert-classifier": _scoring(
        EUROBERT | _labels("a", "b") | {"classifier_pooling": "mean"},
        "EuroBertForSequenceClassification",
        "begin",
        prefix="model.",
    ),
}
"""Every family with a head, and every way in which the files declare the head."""

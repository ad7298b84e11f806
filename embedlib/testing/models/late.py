"""Tiny late-interaction models: in the layouts of sentence-transformers, PyLate and Stanford."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from embedlib.testing.models.encoders import BERT, ROBERTA
from embedlib.testing.models.rotary_encoders import MODERNBERT
from embedlib.testing.models.variant import (
    IDENTITY,
    ST5,
    ST6_BASE,
    ST6_SETTINGS,
    Json,
    TinyModule,
    TinyVariant,
)

MASK_TYPE: Final = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask."
OF_TOKENS: Final[Json] = {
    "module_input_name": "token_embeddings",
    "module_output_name": "token_embeddings",
}


def _dense(
    path: str, sizes: tuple[int, int], kind: str = ST6_BASE + "dense.Dense", **others: object
) -> TinyModule:
    config: Json = {
        "in_features": sizes[0],
        "out_features": sizes[1],
        "bias": False,
        "activation_function": IDENTITY,
    }
    return TinyModule(type=kind, path=path, config=config | others)


def _mask(path: str, **config: object) -> TinyModule:
    return TinyModule(type=MASK_TYPE + "MultiVectorMask", path=path, config=config)


def _normalize(path: str) -> TinyModule:
    return TinyModule(type=ST6_BASE + "normalize.Normalize", path=path, config=OF_TOKENS)


def _native(**general: object) -> Json:
    return {
        "model_type": "MultiVectorEncoder",
        "__version__": {"sentence_transformers": "6.2.0"},
        "prompts": {"query": "query: ", "document": "passage: "},
        "default_prompt_name": None,
        "similarity_fn_name": "maxsim",
    } | general


LATE: Final[Mapping[str, TinyVariant]] = {
        "late-bert": TinyVariant(
            tokenizer="bert",
            transformer_type=ST6_BASE + "transformer.Transformer",
            config=BERT,
            modules=(
                _dense("1_Dense", (32, 24), **OF_TOKENS, use_residual=True),
                _dense("2_Dense", (24, 24), **OF_TOKENS, use_residual=True),
                _dense("3_Dense", (24, 16), **OF_TOKENS),
                _mask("4_Mask", skiplist_words=[".", ",", "?", "word"]),
                _normalize("5_Normalize"),
            ),
            settings=ST6_SETTINGS
            | {
                "document_length": 20,
                "query_expansion": {
                    "strategy": "fixed", "attend": False, "token": None, "length": 16,
                },
            },
            general=_native(),
        ),
        "late-roberta": TinyVariant(
            tokenizer="roberta",
            transformer_type=ST6_BASE + "transformer.Transformer",
            config=ROBERTA,
            modules=(
                _dense("1_Dense", (32, 16), **OF_TOKENS),
                _normalize("2_Normalize"),
                _mask("3_Mask", skiplist_words=[".", "data"], skiplist_tasks=["query", "document"]),
            ),
            tokenizer_config={"tokenizer_class": "RobertaTokenizer", "model_max_length": 46},
            settings=ST6_SETTINGS
            | {
                "query_length": 18,
                "query_expansion": {"strategy": "min", "attend": False, "length": 12},
            },
            general=_native(similarity_fn_name="meanmaxsim"),
            prefix="roberta.",
        ),
        "late-modernbert": TinyVariant(
            tokenizer="late",
            config=MODERNBERT | {"global_attn_every_n_layers": 3, "norm_bias": False},
            modules=(_dense("1_Dense", (36, 16), "pylate.models.Dense.Dense"),),
            tokenizer_config={"model_max_length": 48},
            settings={"max_seq_length": 19, "do_lower_case": False},
            general={
                "model_type": "ColBERT",
                "__version__": {"sentence_transformers": "5.3.0", "pytorch": "2.13.0"},
                "prompts": {"query": "", "document": ""},
                "default_prompt_name": None,
                "similarity_fn_name": "MaxSim",
                "query_prefix": "[Q] ",
                "document_prefix": "[D] ",
                "query_length": 16,
                "document_length": 20,
                "attend_to_expansion_tokens": True,
                "skiplist_words": [".", ",", "!", "?"],
                "do_query_expansion": True,
            },
            prefix="model.",
        ),
        "late-pylate": TinyVariant(
            tokenizer="late",
            config=BERT,
            modules=(_dense("1_Dense", (32, 16), "pylate.models.Dense.Dense"),),
            settings={"max_seq_length": 19, "do_lower_case": False},
            transformer_type=ST5 + "Transformer",
            general={
                "__version__": {"sentence_transformers": "3.4.1", "pytorch": "2.6.0"},
                "prompts": {},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine",
                "query_prefix": "[unused0]",
                "document_prefix": "[unused1]",
                "query_length": 15,
                "document_length": 20,
                "attend_to_expansion_tokens": False,
                "skiplist_words": [".", ","],
                "do_query_expansion": False,
            },
        ),
        "late-stanford": TinyVariant(
            tokenizer="late",
            config=BERT | {"architectures": ["HF_ColBERT"]},
            prefix="bert.",
            metadata={
                "query_token_id": "[unused0]",
                "doc_token_id": "[unused1]",
                "query_maxlen": 16,
                "doc_maxlen": 20,
                "mask_punctuation": True,
                "attend_to_mask_tokens": False,
                "dim": 16,
                "similarity": "cosine",
                "bsize": 32,
            },
        ),
    }  # fmt: skip
"""Every variant of a late-interaction model."""

"""Tiny sparse models: SPLADE of several families, and tables of token weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from safetensors.numpy import save_file

from embedlib.testing.models.encoders import BERT, MPNET, ROBERTA
from embedlib.testing.models.heads import DISTILBERT
from embedlib.testing.models.rotary_encoders import MODERNBERT
from embedlib.testing.models.tokenizers import build_tokenizer
from embedlib.testing.models.variant import ST6_BASE, ST6_SETTINGS, Json, TinyModule, TinyVariant
from embedlib.testing.models.write import uniform, write_json, write_variant

SPARSE: Final = "sentence_transformers.sparse_encoder."
TRANSFORMER: Final = ST6_BASE + "transformer.Transformer"
TABLE: Final = SPARSE + "modules.sparse_static_embedding.SparseStaticEmbedding"
SETTINGS: Final[Json] = ST6_SETTINGS | {
    "transformer_task": "fill-mask",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
}
GENERAL: Final[Json] = {
    "model_type": "SparseEncoder",
    "prompts": {"query": "", "document": ""},
    "default_prompt_name": None,
    "similarity_fn_name": None,
}
TYPED: Final[Json] = {"tokenizer_class": "BertTokenizer", "model_max_length": 40}


def _splade(config: Json | None = None, kind: str = "modules.splade_pooling") -> TinyModule:
    config = {"pooling_strategy": "max", "activation_function": "relu"} | (config or {})
    return TinyModule(type=f"{SPARSE}{kind}.SpladePooling", path="1_SpladePooling", config=config)


SPARSE_VARIANTS: Final[Mapping[str, TinyVariant]] = MappingProxyType(
    {
        "bert-splade": TinyVariant(
            tokenizer="bert",
            config=BERT | {"architectures": ["BertForMaskedLM"]},
            transformer_type=TRANSFORMER,
            tokenizer_config=TYPED,
            settings=SETTINGS,
            general=GENERAL,
            modules=(_splade({"embedding_dimension": None}),),
            prefix="bert.",
        ),
        # As sentence-transformers 5 wrote it, with a matrix of its own for the head.
        "distilbert-splade": TinyVariant(
            tokenizer="bert",
            config={"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]}
            | DISTILBERT
            | {"tie_word_embeddings": False},
            transformer_type="sentence_transformers.sparse_encoder.models.MLMTransformer",
            tokenizer_config=TYPED,
            settings={"max_seq_length": 30, "do_lower_case": False},
            general=GENERAL | {"max_active_dims": 12},
            modules=(_splade({"activation_function": "log1p_relu"}, "models"),),
            prefix="distilbert.",
        ),
        "roberta-splade": TinyVariant(
            tokenizer="roberta",
            config=ROBERTA | {"architectures": ["RobertaForMaskedLM"]},
            transformer_type=TRANSFORMER,
            tokenizer_config={"tokenizer_class": "RobertaTokenizer", "model_max_length": 40},
            settings=SETTINGS,
            general=GENERAL,
            modules=(_splade({"pooling_strategy": "sum"}),),
            prefix="roberta.",
        ),
        "modernbert-splade": TinyVariant(
            tokenizer="bert",
            config=MODERNBERT | {"architectures": ["ModernBertForMaskedLM"]},
            transformer_type=TRANSFORMER,
            tokenizer_config={"model_max_length": 40},
            settings=SETTINGS,
            general=GENERAL | {"similarity_fn_name": "cosine"},
            modules=(_splade(),),
            prefix="model.",
            dtype="BF16",
        ),
        "mpnet-splade": TinyVariant(
            tokenizer="mpnet",
            config=MPNET | {"architectures": ["MPNetForMaskedLM"]},
            transformer_type=TRANSFORMER,
            tokenizer_config={"tokenizer_class": "MPNetTokenizer", "model_max_length": 40},
            settings=SETTINGS,
            general=GENERAL,
            modules=(_splade(),),
            prefix="mpnet.",
        ),
    }
)


def write_sparse_model(folder: Path, variant: str = "bert-splade") -> Path:
    """Write the folder of a SPLADE model and return it.

    Args:
        folder: where to write; created if missing.
        variant: a key of `SPARSE_VARIANTS`.
    """
    return write_variant(folder, variant, SPARSE_VARIANTS[variant])


def write_token_weights(folder: Path) -> Path:
    """Write the folder of a table of token weights for all texts, and return it."""
    _write_table(folder)
    write_json(folder / "modules.json", [_entry(0, "", TABLE)])
    write_json(folder / "config_sentence_transformers.json", GENERAL)
    return folder


def write_router(folder: Path) -> Path:
    """Write the folder of a model with a table for queries, and return it."""
    documents, queries = "document_0_Transformer", "query_0_SparseStaticEmbedding"
    pooling = "document_1_SpladePooling"
    write_sparse_model(folder / documents)
    (folder / documents / "modules.json").unlink()
    (folder / documents / "config_sentence_transformers.json").unlink()
    (folder / documents / "1_SpladePooling").rename(folder / pooling)
    _write_table(folder / queries)
    router = {
        "types": {
            queries: TABLE,
            documents: TRANSFORMER,
            pooling: SPARSE + "modules.splade_pooling.SpladePooling",
        },
        "structure": {"query": [queries], "document": [documents, pooling]},
        "parameters": {
            "default_route": "document",
            "allow_empty_key": True,
            "route_mappings": {},
        },
    }
    write_json(folder / "router_config.json", router)
    write_json(folder / "modules.json", [_entry(0, "", ST6_BASE + "router.Router")])
    write_json(folder / "config_sentence_transformers.json", GENERAL)
    return folder


def _write_table(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, special = build_tokenizer("bert")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16}
    write_json(folder / "tokenizer_config.json", config | special)
    write_json(folder / "config.json", {"frozen": False})
    weights = 1 + uniform("sparse/weights", (tokenizer.get_vocab_size(),))
    save_file({"weight": weights}, folder / "model.safetensors")


def _entry(position: int, path: str, kind: str) -> Json:
    return {"idx": position, "name": str(position), "path": path, "type": kind}

"""Models of true shape with seeded random weights, for measuring without a download.

A shape has the layers of the model that it is named after: their number, their sizes, the type in
which its file stores them, and all rows of the embedding table: how the lanes are laid out depends
on all weights. Two things are not the model's: the values are random, and the tokenizer, which is
trained on the documentation of Python's library, has `NUM_PIECES` pieces. No text needs the rows
behind those.

What such a model tells is speed and memory. Its vectors mean nothing, and its weights have no
outliers: how much a precision loses on a trained model is for that model to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from embedlib.bench.shape_tokenizer import TOKENIZERS, TokenizerKind
from embedlib.bench.shape_weights import write_weights
from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.models.hub import ModelFolder, resolve
from embedlib.testing.models.variant import NORMALIZE, pooling
from embedlib.testing.models.write import write_json, write_modules

SHAPE_PREFIX: Final = "shape:"

NUM_PIECES: Final = 8192
"""Of the tokenizer; `TRAINING_TEXTS` are enough for them."""

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A row of the table: what the folder of such a model holds, but for the weights' values."""

    config: Json
    tokenizer: TokenizerKind
    pooling: Literal["cls_token", "mean_tokens", "lasttoken"] | None
    """None: it is a reranker."""
    max_tokens: int
    dtype: Literal["F32", "BF16"] = "F32"
    prefix: str = ""
    """Of the transformer's tensors in the file."""
    has_token_types: bool = False


_BERT: Final[Json] = {
    "model_type": "bert",
    "vocab_size": 30522,
    "architectures": ["BertModel"],
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}
_ONE_LABEL: Final[Json] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
_DECODER: Final[Json] = {
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def _bert(pooling: Literal["cls_token", "mean_tokens"], **changes: int) -> Shape:
    return Shape(
        config=_BERT | changes,
        tokenizer="word-piece",
        pooling=pooling,
        max_tokens=512,
        has_token_types=True,
    )


SHAPES: Final[Mapping[str, Shape]] = {
    # Source: config.json of sentence-transformers/all-MiniLM-L6-v2.
    "minilm": _bert("mean_tokens", hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
    # Source: config.json of BAAI/bge-base-en-v1.5.
    "bert-base": _bert("cls_token"),
    # Source: config.json of BAAI/bge-large-en-v1.5.
    "bert-large": _bert(
        "cls_token",
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    ),
    # Source: config.json of Qwen/Qwen3-Embedding-0.6B.
    "qwen3-0.6b": Shape(
        config=_DECODER
        | {
            "model_type": "qwen3",
            "vocab_size": 151669,
            "architectures": ["Qwen3ForCausalLM"],
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000,
            "use_sliding_window": False,
            "sliding_window": None,
        },
        tokenizer="byte-pairs-end",
        pooling="lasttoken",
        max_tokens=8192,
        dtype="BF16",
    ),
    # Source: config.json of BAAI/bge-en-icl.
    "mistral-7b": Shape(
        config=_DECODER
        | {
            "model_type": "mistral",
            "vocab_size": 32003,
            "architectures": ["MistralModel"],
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
        },
        tokenizer="byte-pairs-both",
        pooling="lasttoken",
        max_tokens=4096,
        dtype="BF16",
    ),
    # Source: config.json of cross-encoder/ms-marco-MiniLM-L6-v2.
    "minilm-reranker": Shape(
        config=_BERT
        | _ONE_LABEL
        | {
            "architectures": ["BertForSequenceClassification"],
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "intermediate_size": 1536,
        },
        tokenizer="word-piece",
        pooling=None,
        max_tokens=512,
        prefix="bert.",
        has_token_types=True,
    ),
    # Source: config.json of BAAI/bge-reranker-v2-m3.
    "bge-reranker-v2-m3": Shape(
        config=_BERT
        | _ONE_LABEL
        | {
            "model_type": "xlm-roberta",
            "vocab_size": 250002,
            "architectures": ["XLMRobertaForSequenceClassification"],
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 8194,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        tokenizer="byte-pairs-roberta",
        pooling=None,
        max_tokens=8192,
        prefix="roberta.",
    ),
}


def find_or_write(model: str, config: Config, scratch: Path) -> ModelFolder:
    """Return the folder of a model; write it into `scratch` if the name is `shape:NAME`.

    Raises:
        EmbedlibError: there is no such model or shape.
    """
    if not model.startswith(SHAPE_PREFIX):
        return resolve(model, config)
    return ModelFolder(name=model, path=write_shape(model, scratch / "shape"))


def write_shape(name: str, folder: Path) -> Path:
    """Write a model that transformers, sentence-transformers and embedlib read; return its folder.

    The file of the weights is written as it is made: no more than some 100 MB are held at a time.

    Args:
        name: `shape:NAME`, or `shape:NAME/2` for two of its layers.
        folder: where to write; created if missing.

    Raises:
        ConfigError: there is no such shape, or the shape has fewer layers.
    """
    shape, num_layers = _find(name)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, special = TOKENIZERS[shape.tokenizer](NUM_PIECES)
    tokenizer.save(str(folder / "tokenizer.json"))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    settings: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_tokens,
        "model_input_names": inputs if shape.has_token_types else [inputs[0], inputs[2]],
        "padding_side": "left" if shape.pooling == "lasttoken" else "right",
    }
    ids = {token: tokenizer.token_to_id(text) for token, text in special.items()}
    config: Json = {
        **{f"{token}_id": ids[token] for token in ids.keys() & {"bos_token", "eos_token"}},
        "pad_token_id": ids["pad_token"],
        **shape.config,
        "num_hidden_layers": num_layers,
    }
    write_json(folder / "tokenizer_config.json", settings | special)
    write_json(folder / "config.json", config)
    if shape.pooling is not None:
        write_modules(folder, [pooling(shape.pooling, dim=shape.config["hidden_size"]), NORMALIZE])
        settings = {"max_seq_length": shape.max_tokens, "do_lower_case": False}
        write_json(folder / "sentence_bert_config.json", settings)
    write_weights(folder, seed=name, prefix=shape.prefix, dtype=shape.dtype)
    return folder


def _find(name: str) -> tuple[Shape, int]:
    """Return a shape and its number of layers."""
    stem, slash, layers = name.removeprefix(SHAPE_PREFIX).partition("/")
    if stem not in SHAPES:
        known = ", ".join(SHAPE_PREFIX + known for known in SHAPES)
        raise ConfigError(f"model = {name!r}; it must be one of {known}")
    shape = SHAPES[stem]
    all_layers: int = shape.config["num_hidden_layers"]
    if not slash:
        return shape, all_layers
    if not (layers.isdecimal() and 1 <= int(layers) <= all_layers):
        raise ConfigError(f"model = {name!r}; {stem} has 1 to {all_layers} layers to keep")
    return shape, int(layers)

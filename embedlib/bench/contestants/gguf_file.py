"""Writes a model folder as GGUF, the file of llama.cpp.

Only what the seeded shapes need, and models like them: BERT with WordPiece, Qwen3 and Mistral with
byte-level BPE. llama.cpp's own script knows far more models, but refuses a tokenizer that is not
on its list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.bench.contestants.others import pooling_of
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Encoder
from embedlib.models.weights.safetensors_files import STORED_DTYPES, list_tensors, map_file

_ARCHITECTURES: Final[Mapping[str, str]] = {"bert": "BERT", "qwen3": "QWEN3", "mistral": "LLAMA"}
"""By config.json's model_type. Source: llama.cpp, the folder conversion/."""

_POOLINGS: Final[Mapping[str, int]] = {"mean": 1, "cls": 2, "last_token": 3}
"""Source: `enum llama_pooling_type` in llama.h."""

_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
"""Types of tokens. Source: `enum llama_token_type` in llama.h."""

_IGNORED: Final = ("position_ids", "pooler.")

Json = dict[str, Any]


def write_gguf(folder: Path, path: Path) -> None:
    """Write a model as GGUF, in the type in which its file stores it.

    Args:
        folder: a model folder with one file of weights.
        path: the file to write.

    Raises:
        ValueError: the model is of another kind.
    """
    gguf = import_module("gguf")
    config: Json = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = config["model_type"]
    if kind not in _ARCHITECTURES:
        raise ValueError(f"no GGUF of model_type {kind!r}; it must be bert, qwen3 or mistral")
    architecture = gguf.MODEL_ARCH[_ARCHITECTURES[kind]]
    encoder = read_model_files(folder).spec.encoder
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_sizes(writer, config, encoder)
    writer.add_pooling_type(gguf.PoolingType(_POOLINGS[pooling_of(folder)]))
    _add_tokenizer(writer, folder, config["vocab_size"])
    names = gguf.get_tensor_name_map(architecture, encoder.num_layers)
    file = folder / "model.safetensors"
    data = map_file(file)
    for name, tensor in list_tensors(file, folder).items():
        if any(part in name for part in _IGNORED):
            continue
        found = None
        for full in (name, f"model.{name}", name.partition(".")[2]):
            found = found or names.get_name(full, (".weight", ".bias"))
        if found is None:
            raise ValueError(f"no GGUF name for the tensor {name!r}")
        stored = tensor.read(data) if len(tensor.shape) == 1 else _stored(tensor, data)
        if architecture == gguf.MODEL_ARCH.LLAMA:
            stored = _interleaved(found, stored, encoder)
        kind_of_values = gguf.GGMLQuantizationType.BF16 if stored.dtype == np.uint16 else None
        # The writer counts the shape of raw values in bytes.
        values = stored.view(np.uint8) if kind_of_values is not None else stored
        writer.add_tensor(found, values, raw_dtype=kind_of_values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored(tensor: Any, data: NDArray[np.uint8]) -> NDArray[Any]:
    """Return a matrix as it is stored: float32, float16 or the bits of bfloat16."""
    kind = np.dtype(STORED_DTYPES[tensor.dtype])
    end = tensor.start + int(np.prod(tensor.shape)) * kind.itemsize
    return data[tensor.start : end].view(kind).reshape(tensor.shape)


def _interleaved(name: str, stored: NDArray[Any], encoder: Encoder) -> NDArray[Any]:
    """Return q and k with neighboring rows rotated together, as llama.cpp wants them of Llama.

    Source: `LlamaModel.permute` in llama.cpp, conversion/llama.py.
    """
    heads = {"attn_q": encoder.num_heads, "attn_k": encoder.num_kv_heads}
    leaf = name.split(".")[2] if name.startswith("blk.") else ""
    if leaf not in heads:
        return stored
    halves = stored.reshape(heads[leaf], 2, -1, *stored.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(stored.shape))


def _add_sizes(writer: Any, config: Json, encoder: Encoder) -> None:
    """Write the sizes of the layers."""
    writer.add_block_count(encoder.num_layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(encoder.hidden_size)
    writer.add_feed_forward_length(encoder.intermediate_size)
    writer.add_head_count(encoder.num_heads)
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "bert":
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(False)
        return
    writer.add_head_count_kv(encoder.num_kv_heads)
    writer.add_key_length(encoder.head_dim)
    writer.add_value_length(encoder.head_dim)
    writer.add_rope_dimension_count(encoder.head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(config["rope_theta"]))


def _add_tokenizer(writer: Any, folder: Path, vocab_size: int) -> None:
    """Write the vocabulary and the special tokens.

    Raises:
        ValueError: it is neither WordPiece nor byte-level BPE with GPT-2's pieces.
    """
    content: Json = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings: Json = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    model = content["model"]
    pieces = {number: piece for piece, number in model["vocab"].items()}
    special = {entry["id"]: entry["content"] for entry in content["added_tokens"]}
    pieces |= special
    is_bert = model["type"] == "WordPiece"
    if not is_bert and (model["type"], content["pre_tokenizer"]["type"]) != ("BPE", "ByteLevel"):
        raise ValueError(f"no GGUF of a tokenizer {model['type']!r}; give WordPiece or GPT-2's BPE")
    tokens = [pieces.get(number, f"[unused{number}]") for number in range(vocab_size)]
    kinds = [
        _CONTROL if number in special else _NORMAL if number in pieces else _UNUSED
        for number in range(vocab_size)
    ]
    if is_bert:
        # Source: `BertModel.set_vocab` in llama.cpp, conversion/bert.py.
        tokens = [
            token if kind != _NORMAL else token[2:] if token[:2] == "##" else f"▁{token}"
            for token, kind in zip(tokens, kinds, strict=True)
        ]
        writer.add_token_type_count(2)
    else:
        writer.add_token_merges(
            [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        )
        writer.add_tokenizer_pre("gpt-2")
    writer.add_tokenizer_model("bert" if is_bert else "gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    _add_special(writer, content, settings, {piece: number for number, piece in special.items()})


def _add_special(writer: Any, content: Json, settings: Json, ids: Mapping[str, int]) -> None:
    """Write which tokens stand around a text, and which are which."""
    around = [
        entry["SpecialToken"]["id"] if "SpecialToken" in entry else None
        for entry in content["post_processor"]["single"]
    ]
    writer.add_add_bos_token(around[0] is not None)
    writer.add_add_eos_token(around[-1] is not None)
    if around[0] is not None:
        writer.add_bos_token_id(ids[around[0]])
    if around[-1] is not None:
        writer.add_eos_token_id(ids[around[-1]])
    for name in ("pad", "unk", "mask", "sep"):
        token = settings.get(f"{name}_token")
        if token is not None:
            getattr(writer, f"add_{name}_token_id")(ids[token])

"""Models that transformers does not have, in plain torch, after their authors' code.

They read config.json and the tensors by the names of the files, and share nothing with embedlib.
Sources:

- JinaBertModel of huggingface.co/jinaai/jina-bert-implementation, modeling_bert.py: a post-norm
  BERT with symmetric ALiBi (arXiv:2310.19923, section 3.1) and GEGLU (arXiv:2002.05202)
- JinaBertModel of huggingface.co/jinaai/jina-bert-v2-qk-post-norm, modeling_bert.py: the same with
  layer norms of all queries and of all keys, and a second norm behind attention
- NomicBertModel of huggingface.co/nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py: its experts
  are those of arXiv:2502.07972, without normalized shares

- GritLM of gritlm 1.0.2, gritlm/gritlm.py: encode, behind MistralModel with attention both ways
- Lfm2BidirectionalModel of huggingface.co/LiquidAI/LFM2.5-Embedding-350M,
  modeling_lfm2_bidirectional.py: Lfm2Model of transformers with attention both ways and centred
  convolutions; the file is read in copies of it, and the class in the main branch of transformers

The first three as restated by text-embeddings-inference, backends/candle/src: models/jina.rs,
jina_code.rs, alibi.rs and models/nomic.rs; the second also in backends/python,
models/jinaBert_model.py.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import conv1d, gelu, layer_norm, normalize, softmax
from transformers import AutoModel, PreTrainedTokenizerFast
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

Tensors = dict[str, torch.Tensor]


def linear(x: torch.Tensor, tensors: Tensors, name: str) -> torch.Tensor:
    bias = tensors.get(f"{name}.bias")
    return torch.nn.functional.linear(x, tensors[f"{name}.weight"], bias)


def norm(x: torch.Tensor, tensors: Tensors, name: str, eps: float) -> torch.Tensor:
    return layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)


def alibi_slopes(heads: int) -> list[float]:
    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return of_power(closest) + alibi_slopes(2 * closest)[0::2][: heads - closest]


def jina_bert(ids: torch.Tensor, tensors: Tensors, config: dict[str, Any]) -> torch.Tensor:
    """Return float32[L, H]: the last layer's vectors of one text."""
    eps, heads, inner = (
        config[key] for key in ("layer_norm_eps", "num_attention_heads", "intermediate_size")
    )
    x = tensors["embeddings.word_embeddings.weight"][ids]
    x = x + tensors["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, tensors, "embeddings.LayerNorm", eps)
    places = torch.arange(len(ids))
    distance = (places[None] - places[:, None]).abs()
    bias = -torch.tensor(alibi_slopes(heads))[:, None, None] * distance
    is_code = "qk-post-norm" in config["auto_map"]["AutoModel"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, tensors, f"{prefix}attention.self.{part}")
            for part in ("query", "key", "value")
        )
        if is_code:
            q, k = (
                norm(part, tensors, f"{prefix}attention.self.layer_norm_{name}", eps)
                for part, name in ((q, "q"), (k, "k"))
            )
        q, k, v = (part.unflatten(1, (heads, -1)).transpose(0, 1) for part in (q, k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + bias
        mixed = (softmax(scores, -1) @ v).transpose(0, 1).flatten(1)
        mixed = linear(mixed, tensors, f"{prefix}attention.output.dense")
        mixed = norm(x + mixed, tensors, f"{prefix}attention.output.LayerNorm", eps)
        if is_code:
            x = norm(x + mixed, tensors, f"{prefix}layer_norm_1", eps)
            both = linear(x, tensors, f"{prefix}mlp.up_gated_layer")
            wide = both[:, :inner] * gelu(both[:, inner:])
            wide = linear(wide, tensors, f"{prefix}mlp.down_layer")
            x = norm(x + wide, tensors, f"{prefix}layer_norm_2", eps)
            continue
        x = mixed
        both = linear(x, tensors, f"{prefix}mlp.gated_layers")
        wide = gelu(both[:, :inner]) * both[:, inner:]
        x = norm(
            x + linear(wide, tensors, f"{prefix}mlp.wo"), tensors, f"{prefix}mlp.layernorm", eps
        )
    return x


def rotated(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rotate float32[heads, L, d] by positions, with pairs from the two halves."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] / base ** (torch.arange(half)[None] / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def experts(x: torch.Tensor, tensors: Tensors, prefix: str, config: dict[str, Any]) -> torch.Tensor:
    count, inner = config["num_experts"], config["n_inner"]
    shares = softmax(linear(x, tensors, f"{prefix}router.layer"), -1)
    values, chosen = shares.topk(config["moe_top_k"], -1)
    up = tensors[f"{prefix}experts.mlp.w1"].unflatten(0, (count, inner))
    down = tensors[f"{prefix}experts.mlp.w2"].unflatten(0, (count, inner))
    rows = []
    for token, (row, names) in enumerate(zip(values, chosen, strict=True)):
        rows.append(
            sum(s * (gelu(x[token] @ up[e].T) @ down[e]) for s, e in zip(row, names, strict=True))
        )
    return torch.stack(rows) + tensors[f"{prefix}experts.bias"]


def nomic_moe(ids: torch.Tensor, tensors: Tensors, config: dict[str, Any]) -> torch.Tensor:
    """Return float32[L, H]: the last layer's vectors of one text."""
    eps, heads = config["layer_norm_epsilon"], config["n_head"]
    x = tensors["embeddings.word_embeddings.weight"][ids]
    x = x + tensors["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, tensors, "emb_ln", eps)
    for layer in range(config["n_layer"]):
        prefix = f"encoder.layers.{layer}."
        q, k, v = (
            part.unflatten(1, (heads, -1)).transpose(0, 1)
            for part in linear(x, tensors, f"{prefix}attn.Wqkv").chunk(3, 1)
        )
        q, k = (rotated(part, config["rotary_emb_base"]) for part in (q, k))
        mixed = softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1) @ v
        mixed = linear(mixed.transpose(0, 1).flatten(1), tensors, f"{prefix}attn.out_proj")
        x = norm(x + mixed, tensors, f"{prefix}norm1", eps)
        if layer % config["moe_every_n_layers"] == 1:
            change = experts(x, tensors, f"{prefix}mlp.", config)
        else:
            change = linear(
                gelu(linear(x, tensors, f"{prefix}mlp.fc1")), tensors, f"{prefix}mlp.fc2"
            )
        x = norm(x + change, tensors, f"{prefix}norm2", eps)
    return x


def peer(folder: Path, reference: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Return a function from ids to the vectors of a class of transformers, and a matrix behind."""
    given = {"vocab_size": json.loads((folder / "config.json").read_text())["vocab_size"]}
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(reference | given))
        shutil.copy(folder / "model.safetensors", place)
        model = AutoModel.from_pretrained(place, dtype=torch.float32, attn_implementation="eager")
    for module in model.modules():
        if isinstance(module, Lfm2ShortConv):
            module.forward = MethodType(centred, module)
    matrix = load_file(folder / "model.safetensors").get("linear.weight")

    def hidden(ids: torch.Tensor, *_: object) -> torch.Tensor:
        with torch.no_grad():
            vectors = model(ids[None]).last_hidden_state[0]
        return vectors if matrix is None else vectors @ matrix.T

    return hidden


def centred(self: Lfm2ShortConv, hidden_states: torch.Tensor, **_: object) -> torch.Tensor:
    """Return a short convolution's change, with as many neighbours on either side."""
    b, c, x = self.in_proj(hidden_states).transpose(1, 2).chunk(3, 1)
    weight = self.conv.weight
    sums = conv1d(b * x, weight, self.conv.bias, padding=weight.shape[-1] // 2, groups=len(weight))
    return self.out_proj((c * sums).transpose(1, 2))


def int8_tanh(vector: torch.Tensor) -> torch.Tensor:
    """Source: Int8TanhQuantizer in st_quantize.py of perplexity-ai/pplx-embed-v1-0.6b."""
    return torch.clamp(torch.round(torch.tanh(vector) * 127), -128, 127)


MODELS = {"bert": jina_bert, "nomic_bert": nomic_moe}
LAST = {
    "Normalize": lambda vector: normalize(vector, dim=0),
    "FlexibleQuantizer": int8_tanh,
    "Pooling": lambda vector: vector,
}


def gritlm(hidden: torch.Tensor, num_instruction_tokens: int) -> torch.Tensor:
    """Source: GritLM.encode and pooling, with pooling_method "mean" and normalized True."""
    return normalize(hidden[num_instruction_tokens:].mean(0), dim=0)


def outputs(
    folder: Path, texts: list[str], prompt: str, limit: int, reference: dict[str, Any] | None
) -> dict[str, np.ndarray]:
    """Return ids, lengths, prompt length and pooled vectors, as make.outputs does."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    own = peer(folder, reference) if reference else MODELS[config["model_type"]]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids, vectors, num_prompt_tokens = [], [], 0
    is_gritlm = not (folder / "modules.json").exists()
    if is_gritlm:
        num_prompt_tokens = len(tokenizer(prompt)["input_ids"]) if prompt else 0
    else:
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
        kinds = [module["type"] for module in json.loads((folder / "modules.json").read_text())]
    for text in texts:
        ids.append(tokenizer(prompt + text, truncation=True, max_length=limit)["input_ids"])
        hidden = own(torch.tensor(ids[-1]), tensors, config)
        if is_gritlm:
            vectors.append(gritlm(hidden, num_prompt_tokens))
            continue
        pooled = hidden[0] if pooling["pooling_mode_cls_token"] else hidden.mean(0)
        vectors.append(LAST[kinds[-1].rpartition(".")[2]](pooled))
    return {
        "ids": np.concatenate(ids).astype(np.int32),
        "lengths": np.array([len(row) for row in ids], dtype=np.int32),
        "num_prompt_tokens": np.int32(num_prompt_tokens),
        "vectors": torch.stack(vectors).numpy().astype(np.float32),
    }

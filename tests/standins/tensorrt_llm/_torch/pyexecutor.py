"""The executor that runs a model for `LLM.encode`."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tensorrt_llm._torch.attention.backends.interface import AttentionMetadata
from tensorrt_llm._torch.autotuner import AutoTuner, autotune
from tensorrt_llm._torch.model_config import ModelConfig, QuantConfig
from tensorrt_llm._torch.models.modeling_utils import MODEL_CLASS_MAPPING

GARBAGE = 7.0
"""The content of uninitialized memory."""


class ModelEngine:
    def __init__(self, folder: Path, args: Any) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config |= args.model_kwargs or {}
        config["torch_dtype"] = getattr(torch, args.dtype)
        self.batch_size = args.max_batch_size
        self.max_num_tokens = args.max_num_tokens
        self.max_seq_len = args.max_seq_len
        graphs = args.cuda_graph_config
        enabled = (
            graphs is not None and graphs.num_tokens is not None and graphs.seq_lens is not None
        )
        self.encoder_cuda_graph_runner = SimpleNamespace(enabled=enabled)
        self._graphs = graphs if enabled else None
        self.replayed: list[tuple[int, int]] = []
        """(sequences, tokens) of every batch that a CUDA graph computed."""
        self._staged: Any = None
        """The event after which the last graph has read its input."""
        self.model = _load(folder, config, args)
        self.max_seq_len = min(self.max_seq_len, self.model.infer_max_seq_len())
        for length in {1, min(2, self.max_seq_len), self.max_seq_len}:  # the warm-up
            self._forward([0] * length, [length])
        with autotune(os.environ.get("TLLM_AUTOTUNER_CACHE_PATH")):
            self._forward([0], [1])
        AutoTuner.get().missed.clear()

    def encoder_forward(
        self, inputs: dict[str, Any], gather_context_logits: bool
    ) -> dict[str, Any]:
        token_ids, lengths = list(inputs.pop("input_ids")), list(inputs.pop("seq_lens"))
        bucket = self._bucket(lengths)
        if bucket is None:
            return {"logits": self._forward(token_ids, lengths, **inputs)}
        # A graph reads its input when it runs on the GPU, from host memory that all graphs share.
        # In 1.3.0rc22 the next call may overwrite that memory too early.
        has_read = self._staged is None or self._staged.query()
        assert has_read, "the graph before may not have read its input yet"
        self.replayed.append(bucket)
        batch_size, num_tokens = bucket
        # Padding: sequences of one token, then zeros.
        padded = lengths + [1] * (batch_size - len(lengths))
        token_ids += [0] * (num_tokens - len(token_ids))
        vectors = self._forward(token_ids, padded)[: len(lengths)].clone()
        self._staged = torch.cuda.Event()
        self._staged.record(torch.cuda.current_stream())
        return {"logits": vectors}

    def _bucket(self, lengths: list[int]) -> tuple[int, int] | None:
        if self._graphs is None:
            return None
        batch_size = min((n for n in self._graphs.batch_sizes if n >= len(lengths)), default=None)
        if batch_size is None:
            return None
        total = sum(lengths) + batch_size - len(lengths)
        # Graphs are captured only for possible sizes: a sequence is not longer than the number of
        # tokens, and there are not more tokens than sequences of that length have.
        sizes = [
            num_tokens
            for num_tokens in sorted(self._graphs.num_tokens)
            for longest in self._graphs.seq_lens
            if num_tokens >= total
            and longest >= max(lengths)
            and longest <= num_tokens <= batch_size * longest
        ]
        return (batch_size, sizes[0]) if sizes else None

    def _forward(self, token_ids: list[int], lengths: list[int], **extra: Any) -> Tensor:
        positions = [position for length in lengths for position in range(length)]
        positions += [0] * (len(token_ids) - len(positions))
        with torch.inference_mode():
            made = self.model.forward(
                attn_metadata=AttentionMetadata(lengths, len(token_ids)),
                input_ids=torch.tensor(token_ids, dtype=torch.int32),
                position_ids=torch.tensor([positions], dtype=torch.int32),
                return_context_logits=False,
                seq_lens=lengths,  # unused by models; rc27 and later pass it
                **extra,
            )
        return made["logits"] if isinstance(made, dict) else made


class EncoderExecutor:
    def __init__(self, model_engine: ModelEngine) -> None:
        self.model_engine = model_engine

    def batch_forward(self, inputs: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self.model_engine.encoder_forward(inputs, **kwargs)

    def shutdown(self) -> None:
        del self.model_engine


def _load(folder: Path, config: dict[str, Any], args: Any) -> nn.Module:
    quant_config = QuantConfig()
    if (folder / "hf_quant_config.json").is_file():
        text = (folder / "hf_quant_config.json").read_text(encoding="utf-8")
        quant_config = QuantConfig(**json.loads(text)["quantization"])
    model_config = ModelConfig(
        SimpleNamespace(**config),
        quant_config=quant_config,
        force_dynamic_quantization=args.force_dynamic_quantization,
    )
    cls = MODEL_CLASS_MAPPING.get(config["architectures"][0])
    if cls is None:
        raise RuntimeError(f"Unknown model architecture: {config['architectures'][0]}")
    with torch.device("meta"):  # memory is allocated only when all sizes are known
        model: nn.Module = cls(model_config)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.copy_(torch.full(parameter.shape, GARBAGE))
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= load_file(path)
    if "weight_mapper" in inspect.getfullargspec(model.load_weights).args:
        model.load_weights(weights, weight_mapper=object())
    else:
        model.load_weights(weights)
    return model

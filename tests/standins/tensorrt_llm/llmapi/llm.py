from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tensorrt_llm._torch.pyexecutor import EncoderExecutor, ModelEngine
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

RESERVED_KEYS = {"input_ids", "seq_lens", "attn_metadata", "return_context_logits"}


@dataclass
class EncoderOutput:
    logits: Tensor
    prompt_token_ids: list[int]
    prompt: str | None = None


class LLM:
    made: ClassVar[list[LLM]] = []
    """Every instance so far, for tests to inspect."""

    def __init__(self, model: str, **kwargs: Any) -> None:
        try:
            self.args = TorchLlmArgs(model=model, **kwargs)
        except TypeError as error:  # an argument that the library does not know
            raise ValueError(str(error)) from error
        self.environment = dict(os.environ)
        self.thread: threading.Thread | None = None
        self.calls: list[tuple[list[list[int]], dict[str, Any]]] = []
        self._encode_only = self.args.encode_only
        self._encoder_executor: EncoderExecutor | None = None
        if self._encode_only:
            self._encoder_executor = EncoderExecutor(ModelEngine(Path(model), self.args))
        LLM.made.append(self)

    def encode(
        self,
        inputs: Any,
        add_special_tokens: bool = True,
        batch_indexed_model_output: bool = True,
        copy_logits_to_host: bool = True,
        return_raw_logits: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        if not self._encode_only:
            raise RuntimeError("encode() requires encode_only=True.")
        if self._encoder_executor is None:
            raise RuntimeError("LLM is shut down or not initialized.")
        if self.thread is None:
            self.thread = threading.current_thread()
        assert self.thread is threading.current_thread(), "only one thread may call encode"
        unbatched = not isinstance(inputs, list) or isinstance(inputs[0], int)
        sequences: list[list[int]] = [inputs] if unbatched else inputs
        engine = self._encoder_executor.model_engine
        if len(sequences) > engine.batch_size:
            raise ValueError(f"Batch size ({len(sequences)}) exceeds max_batch_size")
        for sequence in sequences:
            if isinstance(sequence, str):
                raise ValueError("tokenizer is required to encode text")
            if not isinstance(sequence, list) or not all(type(token) is int for token in sequence):
                raise TypeError(f"Unsupported input type: {type(sequence)}")
        lengths = [len(sequence) for sequence in sequences]
        if sum(lengths) > engine.max_num_tokens:
            raise ValueError(f"Total tokens ({sum(lengths)}) exceeds max_num_tokens")
        if max(lengths) > engine.max_seq_len:
            raise ValueError(f"Max sequence length ({max(lengths)}) exceeds max_seq_len")
        extra = {key: value for key, value in model_kwargs.items() if key not in RESERVED_KEYS}
        if extra and engine.encoder_cuda_graph_runner.enabled:
            raise NotImplementedError("model_kwargs with encoder CUDA graphs")
        self.calls.append((sequences, extra))
        flat = [token for sequence in sequences for token in sequence]
        inputs_dict = {"input_ids": flat, "seq_lens": lengths, **extra}
        logits = self._encoder_executor.batch_forward(
            inputs_dict, gather_context_logits=not batch_indexed_model_output
        )["logits"]
        if copy_logits_to_host:
            logits = logits.cpu()
            torch.cuda.current_stream().synchronize()
        if return_raw_logits:
            return logits
        parts = list(logits if batch_indexed_model_output else logits.split(lengths))
        outputs = [EncoderOutput(part, ids) for part, ids in zip(parts, sequences, strict=True)]
        return outputs[0] if unbatched else outputs

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("generate() is not available when encode_only=True.")

    def shutdown(self) -> None:
        if self._encoder_executor is not None:
            self._encoder_executor.shutdown()
        self._encoder_executor = None

    def __reduce__(self) -> Any:
        raise TypeError("an LLM cannot be pickled")


assert torch.__version__, "the library is built against one version of torch"

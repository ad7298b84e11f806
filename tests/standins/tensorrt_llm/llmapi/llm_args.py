from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(kw_only=True)
class EncodeCudaGraphConfig:
    batch_sizes: list[int]
    num_tokens: list[int] | None = None
    seq_lens: list[int] | None = None
    enable_padding: bool = False

    def __post_init__(self) -> None:
        for sizes in (self.batch_sizes, self.num_tokens, self.seq_lens):
            if sizes is not None and (not sizes or min(sizes) < 1):
                raise ValueError("sizes must be positive, and at least one")


@dataclass(kw_only=True)
class TorchCompileConfig:
    enable_piecewise_cuda_graph: bool = False


@dataclass(kw_only=True)
class TorchLlmArgs:
    model: str
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    encode_only: bool = False
    mm_encoder_only: bool = False
    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    attn_backend: str = "TRTLLM"
    cuda_graph_config: EncodeCudaGraphConfig | None = None
    torch_compile_config: TorchCompileConfig | None = None
    enable_autotuner: bool = True
    model_kwargs: dict[str, Any] | None = None
    force_dynamic_quantization: bool = False
    telemetry_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.encode_only and self.mm_encoder_only:
            raise ValueError("encode_only and mm_encoder_only exclude each other")
        compiled = self.torch_compile_config
        if self.encode_only and compiled is not None and compiled.enable_piecewise_cuda_graph:
            raise ValueError("enable_piecewise_cuda_graph is not supported with encode_only")
        if self.encode_only and self.tensor_parallel_size != 1:
            raise ValueError("encode_only works on one GPU")
        if not {"disabled", "usage_context"}.issuperset(self.telemetry_config or {}):
            raise ValueError(f"telemetry_config: {self.telemetry_config} has other fields")
        assert self.skip_tokenizer_init, "the library must not load a tokenizer"
        assert not self.trust_remote_code, "the code in a model folder must never run"


TorchLlmArgs.model_fields = {field.name: field for field in fields(TorchLlmArgs)}  # type: ignore[attr-defined]

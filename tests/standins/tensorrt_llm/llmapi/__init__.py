"""Stand-in, see tests/standins/README.md."""

from tensorrt_llm.llmapi.llm_args import EncodeCudaGraphConfig, TorchCompileConfig, TorchLlmArgs

__all__ = ["EncodeCudaGraphConfig", "TorchCompileConfig", "TorchLlmArgs"]

"""Stand-in for TensorRT-LLM, see tests/standins/README.md."""

from tensorrt_llm.llmapi.llm import LLM

__all__ = ["LLM"]
__version__ = "1.3.0rc29"

"""The engine on TensorRT-LLM: our own model classes, fed through its `LLM.encode`."""

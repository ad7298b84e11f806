"""The engine on TensorRT-LLM: our own model classes, called through its `LLM.encode`."""

"""From safetensors files to arrays by role, and the digests that tell weights apart."""

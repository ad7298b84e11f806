"""Arithmetic on computed vectors: similarity, quantization, per-token vectors, files."""

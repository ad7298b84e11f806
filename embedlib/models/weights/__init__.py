"""Reads safetensors files into arrays by role, and computes the digest of a model's weights."""

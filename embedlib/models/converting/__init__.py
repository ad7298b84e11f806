"""Pickled weights of PyTorch to safetensors: read without torch, and without running a pickle."""

"""Reads the JSON files of a model folder into a `ModelSpec`; rejects what is not supported."""

"""Engines: each lowers a ModelSpec and its weights to something that runs batches."""

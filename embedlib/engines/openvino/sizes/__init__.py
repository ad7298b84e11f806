"""Sizes that are known before a graph is built: of blocks, stages, parts, paddings."""

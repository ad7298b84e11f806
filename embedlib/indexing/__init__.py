"""Bulk load: sources, chunking, sinks, and the pipeline between them.

`embedlib.index` runs it; it is called `indexing` so that the function can have the short name.
"""

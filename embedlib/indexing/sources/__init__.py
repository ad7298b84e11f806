"""Sources: what a load reads, such as files, folders and SQL queries.

Old import path: code written for earlier versions imports the names below from here. New code
imports them from `embedlib.indexing`.
"""

from __future__ import annotations

from embedlib.indexing.sources.files import open_source
from embedlib.indexing.sources.protocol import InputFormat, Source, SourceOptions
from embedlib.indexing.sources.sql import open_sql_source

__all__ = ["InputFormat", "Source", "SourceOptions", "open_source", "open_sql_source"]

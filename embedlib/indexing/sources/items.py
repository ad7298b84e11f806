"""Types of what a program may give `embedlib.index` as documents, for editors and type checkers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sources.tables import ArrowTable


class LangChainDocument(Protocol):
    """A document of LangChain; its `id` must be set, or `id_field` names metadata that has one."""

    @property
    def page_content(self) -> str:
        """The text."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is stored beside it."""


class LlamaIndexNode(Protocol):
    """A document or node of LlamaIndex; its id must be one that it was given."""

    @property
    def node_id(self) -> str:
        """The id."""

    @property
    def text(self) -> str:
        """The text."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is stored beside it."""


SourceItem: TypeAlias = (
    Document
    | BadRow
    | Mapping[str, Any]
    | LangChainDocument
    | LlamaIndexNode
    | ArrowTable
    | str
    | os.PathLike[str]
)
"""A document or a row; a part of a table; or, in a list of them, the path of a file or folder."""

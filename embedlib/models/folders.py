"""Reads a model folder of any kind: of a transformer, of a table, or of both."""

from __future__ import annotations

from pathlib import Path

from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.model_file import has_file, load_json
from embedlib.models.reading.module_list import STATIC, TOKEN_WEIGHTS, read_module_list
from embedlib.models.sparse_model import ROUTER, ROUTER_NAME, read_router, read_token_weights
from embedlib.models.static_model import MODEL2VEC, read_model2vec, read_static


def read_folder(
    folder: Path, *, with_head: bool = False, template: str | None = None, is_compiled: bool = False
) -> ModelFiles:
    """Return the spec of the model in a folder, and where its files are; see `read_model_files`.

    Raises:
        ModelError: as in `read_model_files`; for a table also if it cannot be read.
        ConfigError: the template is unknown, or given without a head.
    """
    is_scoring = with_head or template is not None  # a template without a head is refused
    kind = None if is_scoring else _kind_of_table(folder)
    if kind is None:
        return read_model_files(
            folder, with_head=with_head, template=template, is_compiled=is_compiled
        )
    if kind == ROUTER:
        return read_router(folder)
    if kind == TOKEN_WEIGHTS:
        [(_, directory)] = read_module_list(folder, with_head=False)
        return read_token_weights(folder, directory)
    return read_static(folder) if kind == STATIC else read_model2vec(folder)


def _kind_of_table(folder: Path) -> str | None:
    """Return the class of the first module if it has a table; None: it is a transformer."""
    if has_file(folder / "modules.json", folder):
        content = load_json(folder / "modules.json", folder)
        first = content[0] if isinstance(content, list) and content else None
        name = str(first.get("type")) if isinstance(first, dict) else ""
        kind = name.rpartition(".")[2] if name.startswith("sentence_transformers.") else None
        if kind == ROUTER:  # others than sparse ones are refused with the rest of modules.json
            return ROUTER if has_file(folder / ROUTER_NAME, folder) else None
        return kind if kind in (STATIC, TOKEN_WEIGHTS) else None
    is_model2vec = JsonObject.load(folder / "config.json", folder).text("model_type") == MODEL2VEC
    return MODEL2VEC if is_model2vec else None

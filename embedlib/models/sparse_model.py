"""Reads a sparse model that has a table of token weights: for queries, or for all texts.

A Router of sentence-transformers has one model for queries and another for documents. Of sparse
models without inference for queries, those get the weights of a `SparseStaticEmbedding`, and
documents a transformer and a SpladePooling.

Source: `Router`, `SparseStaticEmbedding` and `SparseEncoder` of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from embedlib.errors import ModelUnsupportedError
from embedlib.models.prompts import Role
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.general_file import read_general
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.model_file import is_file_name
from embedlib.models.reading.module_list import (
    NO_KWARGS,
    SPLADE,
    TOKEN_WEIGHTS,
    accepted_after,
    module_kind,
    read_entries,
)
from embedlib.models.reading.parts import length_key
from embedlib.models.spec import ModelSpec
from embedlib.models.static_model import NO_LIMIT, table_encoder
from embedlib.models.weights.table import find_token_weights
from embedlib.models.weights.weight_files import WEIGHTS_NAME

ROUTER: Final = "Router"
ROUTER_NAME: Final = "router_config.json"
ROLES: Final[Mapping[str, Role]] = {"query": "query", "document": "document"}
"""The routes of a Router."""


def read_token_weights(folder: Path, directory: Path) -> ModelFiles:
    """Return the files of a table of token weights.

    Args:
        folder: the model folder.
        directory: holds the module.

    Raises:
        ModelError: a file holds something that is not implemented, or the table cannot be read.
    """
    JsonObject.load(directory / "config.json", folder).check_keys({"frozen"})
    table = find_token_weights(directory / WEIGHTS_NAME, folder)
    [num_tokens] = table.weights.shape
    general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
    limit, source = _limit(JsonObject.load(directory / "tokenizer_config.json", folder))
    spec = ModelSpec(
        encoder=table_encoder(num_tokens, 1),
        modules=(),
        embedding_dim=num_tokens,
        max_seq_tokens=limit,
        max_seq_tokens_source=source,
        **read_general(general, num_tokens, is_sparse=True),
    )
    return ModelFiles(folder=folder, spec=spec, transformer_dir=directory, module_dirs=())


def read_router(folder: Path) -> ModelFiles:
    """Return the files of a Router: those of its document route, with those of queries.

    Raises:
        ModelError: as in `read_model_files`; also if a route is another one than these.
    """
    entry, *others = read_entries(folder)
    if others:
        raise ModelUnsupportedError(
            f"modules.json: has {len(others) + 1} modules; accepted: a {ROUTER} alone"
        )
    entry.check_fixed("kwargs", NO_KWARGS)
    entry.check_fixed("path", ("", None))
    config = JsonObject.load(folder / ROUTER_NAME, folder)
    config.check_keys({"types", "structure", "parameters"})
    structure = config.child("structure")
    if set(structure.values) != set(ROLES):
        raise config.refuse("structure", "the routes query and document")
    queries = _route(config, "query", folder)
    if [kind for kind, _ in queries] != [TOKEN_WEIGHTS]:
        raise structure.refuse("query", f"one module, a {TOKEN_WEIGHTS}")
    documents = _route(config, "document", folder)
    if documents[-1][0] != SPLADE:
        raise structure.refuse("document", f"a Transformer and a {SPLADE}")
    files = read_model_files(folder, entries=documents)
    return replace(
        files,
        queries=read_token_weights(folder, queries[0][1]),
        default_role=_default_role(config),
    )


def _default_role(config: JsonObject) -> Role:
    """Return the route of texts that are neither queries nor documents."""
    parameters = config.child("parameters")
    parameters.check_keys({"default_route", "allow_empty_key", "route_mappings"})
    parameters.check_fixed("route_mappings", ({}, None))
    if "default_route" in parameters:
        return parameters.choice("default_route", ROLES)
    parameters.check_fixed("allow_empty_key", (True,))  # else a call without a role fails
    return ROLES[next(iter(config.child("structure").values))]


def _route(config: JsonObject, name: str, folder: Path) -> list[tuple[str, Path]]:
    """Return class and directory of each module of a route."""
    structure, types = config.child("structure"), config.child("types")
    names = structure.values[name]
    if not isinstance(names, list) or not names or not all(isinstance(id_, str) for id_ in names):
        raise structure.refuse(name, "a list of names")
    found: list[tuple[str, Path]] = []
    for id_ in names:
        if not is_file_name(id_) or id_ not in types:
            raise structure.refuse(name, "names of types, each a folder")
        accepted = accepted_after([kind for kind, _ in found], with_head=False)
        found.append((module_kind(types, accepted, key=id_), folder / id_))
    return found


def _limit(tokenizer_config: JsonObject) -> tuple[int, str]:
    """Return the length limit, which counts no special tokens, and what sets it."""
    key = length_key(tokenizer_config)
    if key not in tokenizer_config:
        return NO_LIMIT, f"modules.json: {TOKEN_WEIGHTS}"
    # transformers writes 10**30 for "no limit".
    limit = int(min(tokenizer_config.number(key), NO_LIMIT))
    return limit, f"{tokenizer_config.name}: {key}"

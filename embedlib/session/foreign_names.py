"""Attributes of other libraries, and what replaces each of them; see docs/migrating.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

from embedlib.config import Config
from embedlib.errors import a_type

_OPTION_NAMES = frozenset(item.name for item in fields(Config))

FOREIGN_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("tokenize", "preprocess"), "use tokenizer.encode_batch(texts)"),
        **dict.fromkeys(
            ("encode_multi_process", "start_multi_process_pool", "stop_multi_process_pool"),
            "encode uses all cores already; pass device= with several devices to the constructor",
        ),
        **dict.fromkeys(
            ("save", "save_pretrained", "save_to_hub", "push_to_hub"),
            "model folders are read and not written; copy the folder",
        ),
        **dict.fromkeys(("to", "cpu", "cuda", "xpu"), "pass device= to the constructor"),
        **dict.fromkeys(
            ("half", "float", "bfloat16", "double"), "pass precision= to the constructor"
        ),
        **dict.fromkeys(
            (
                *("train", "fit", "old_fit", "zero_grad", "requires_grad_"),
                *("gradient_checkpointing_enable", "smart_batching_collate"),
            ),
            "models are not trained here; leave it out",
        ),
        **dict.fromkeys(
            (
                *("modules", "named_modules", "children", "named_children", "get_submodule"),
                *("forward", "model", "transformers_model", "append", "extend", "insert", "pop"),
            ),
            "there is no module of torch; spec says what the model is",
        ),
        **dict.fromkeys(
            (
                *("parameters", "named_parameters", "get_parameter", "buffers", "named_buffers"),
                *("state_dict", "load_state_dict"),
            ),
            "weights are not objects of torch here; read the model's safetensors files",
        ),
        **dict.fromkeys(
            (
                *("add_adapter", "load_adapter", "set_adapter", "delete_adapter"),
                *("enable_adapters", "disable_adapters", "active_adapter", "active_adapters"),
            ),
            "merge the adapter into a model folder with embedlib convert --adapter",
        ),
        "decode": "use tokenizer.id_to_token(id) for each id of a sparse vector",
        "sparsity": "see len(vector), the number of weights of a sparse vector",
        "intersection": "take the ids that both dicts have",
        "max_active_dims": "pass max_active_dims= to the constructor, or to encode",
        "splade_pooling_chunk_size": "leave it out; the engine bounds its memory itself",
        "evaluate": "call the evaluator with it: evaluator(model)",
        "load": "pass the model's name or folder to the constructor",
        "compile": "leave it out; the engine compiles the model when it is loaded",
        "dtype": "use precision",
        "get_backend": "see config.engine",
        "processor": "use tokenizer",
        "device": "see config.device; what is returned is in the CPU's memory",
        "max_length": "use max_seq_length",
        "embed_documents": "use encode_document, or EmbedlibEmbeddings of langchain_embedlib",
        "embed_query": "use encode_query, or EmbedlibEmbeddings of langchain_embedlib",
        "embed": "use encode, or encode_stream for an iterator",
        "query_embed": "use encode_query",
        "passage_embed": "use encode_document",
        "compute_score": "use predict, with raw_scores=True for the same numbers",
        **dict.fromkeys(
            ("truncate_embeddings", "truncate_sentence_embeddings"),
            "pass truncate_dim= to encode",
        ),
        **dict.fromkeys(
            ("activation_fn", "default_activation_function", "get_default_activation_fn"),
            "pass activation_fn= to rank or predict",
        ),
    }
)
"""Of sentence-transformers, fastembed and FlagEmbedding: what to use instead."""
SET_ELSEWHERE: Final = frozenset(
    {
        *("device", "max_length", "dtype", "activation_fn", "default_activation_function"),
        "max_active_dims",
    }
)
"""Those that programs set there; other names a subclass may use for what it likes."""


class StrictAttributes:
    """Base of a session: says what to use in place of an attribute that it does not have."""

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; for a name of another library with what replaces it here."""
            hint = f"; {FOREIGN_NAMES[name]}" if name in FOREIGN_NAMES else ""
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}{hint}")

        def __setattr__(self, name: str, value: object) -> None:
            """Raise AttributeError where setting an attribute would have no effect."""
            attribute = getattr(type(self), name, None)
            if isinstance(attribute, property) and attribute.fset is None:
                hint = f"pass {name}= to the constructor" if name in _OPTION_NAMES else "leave it"
                raise AttributeError(f"{type(self).__name__}.{name} is read only; {hint}")
            if name in SET_ELSEWHERE:
                self.__getattr__(name)
            object.__setattr__(self, name, value)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: threads and engines can be neither pickled nor copied."""
        kind = type(self).__name__
        raise TypeError(
            f"{a_type(self)} cannot be pickled or copied; share it, which any number of threads "
            f"may, or send the model's name and a Config to another process and make the {kind} "
            "there"
        )

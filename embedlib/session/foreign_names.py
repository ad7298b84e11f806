"""Attributes and arguments of other libraries, and what replaces each; see docs/migrating.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import getattr_static
from typing import TYPE_CHECKING, Final, NoReturn

from embedlib.config import Config
from embedlib.errors import a_type

_OPTION_NAMES = frozenset(item.name for item in fields(Config))

NO_MODULE: Final = "there is no module of torch; spec says what the model is"

FOREIGN_NAMES: Final[Mapping[str, str]] = {
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
    **dict.fromkeys(("half", "float", "bfloat16", "double"), "pass precision= to the constructor"),
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
            *("_first_module", "_last_module", "auto_model"),
        ),
        NO_MODULE,
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
    **dict.fromkeys(("modalities", "supports"), "texts are the only inputs; leave it out"),
    "set_pooling_include_prompt": "include_prompt of 1_Pooling/config.json says it",
    "decode": "use tokenizer.id_to_token(id) for each id of a sparse vector",
    "sparsity": "see len(vector), the number of weights of a sparse vector",
    "intersection": "take the ids that both dicts have",
    "max_active_dims": "pass max_active_dims= to the constructor, or to encode",
    "splade_pooling_chunk_size": "leave it out; the engine bounds its memory itself",
    "evaluate": "call the evaluator with it: evaluator(model)",
    **dict.fromkeys(
        ("load", "from_pretrained", "from_finetuned", "from_args", "add_custom_model"),
        "pass the model's name or folder to the constructor",
    ),
    "list_supported_models": "the command embedlib models lists them",
    **dict.fromkeys(("get_tokenizer", "token_count"), "use tokenizer.encode_batch(texts)"),
    "compile": "leave it out; the engine compiles the model when it is loaded",
    "dtype": "use precision",
    "get_backend": "see config.engine",
    "processor": "use tokenizer",
    **dict.fromkeys(
        ("device", "_target_device"),
        "see config.device; what is returned is in the CPU's memory",
    ),
    "max_length": "use max_seq_length",
    "embed_documents": "use encode_document, or EmbedlibEmbeddings of langchain_embedlib",
    "embed_query": "use encode_query, or EmbedlibEmbeddings of langchain_embedlib",
    **dict.fromkeys(("embed", "aembed"), "use encode, encode_stream for an iterator, or aencode"),
    **dict.fromkeys(("query_embed", "encode_queries", "get_query_embedding"), "use encode_query"),
    **dict.fromkeys(
        ("passage_embed", "encode_corpus", "get_text_embedding", "get_text_embedding_batch"),
        "use encode_document",
    ),
    **dict.fromkeys(
        (
            *("embedding_size", "get_embedding_size", "get_word_embedding_dimension"),
            *("dim", "dimension", "embedding_dim"),
        ),
        "use get_embedding_dimension()",
    ),
    **dict.fromkeys(
        ("rank", "predict"), "a model that scores is loaded with Reranker or Classifier"
    ),
    "search": "use embedlib.search, or Search, with a destination that index loaded",
    "set_examples": "pass examples= to the constructor, or to encode_query",
    "compute_lexical_matching_score": "use similarity, which compares sparse vectors by dot",
    "colbert_score": "use embedlib.maxsim",
    "compute_score": "use predict, with raw_scores=True for the same numbers",
    **dict.fromkeys(("rerank", "arerank"), "use rank of a Reranker, or arank"),
    **dict.fromkeys(("score", "score_pairs", "rerank_pairs"), "use rank or predict of a Reranker"),
    **dict.fromkeys(("classify", "aclassify"), "use predict of a Classifier, or apredict"),
    **dict.fromkeys(("astart", "astop"), "leave it out; the constructor loads, close() ends"),
    **dict.fromkeys(
        ("truncate_embeddings", "truncate_sentence_embeddings"),
        "pass truncate_dim= to encode",
    ),
    **dict.fromkeys(
        ("activation_fn", "default_activation_function", "get_default_activation_fn"),
        "pass activation_fn= to rank or predict",
    ),
}
"""Of sentence-transformers, fastembed, FlagEmbedding, model2vec, vLLM, Infinity and LlamaIndex:
what to use instead."""
FOREIGN_ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("num_workers", "use_multiprocessing", "multiprocessing_threshold", "parallel"),
            *("batch_size", "chunk_size", "pool"),
        ),
        "one process uses all cores, and batches are made by token budget; leave it out",
    ),
    **dict.fromkeys(("max_length", "max_seq_length"), "pass max_seq_tokens= to the constructor"),
    **dict.fromkeys(
        ("truncate", "truncation", "padding"),
        "leave it out; on_truncate= of the constructor says what happens to long texts",
    ),
    **dict.fromkeys(
        (
            *("documents", "query", "queries", "text", "inputs", "sequences"),
            *("pairs", "sentence_pairs"),
        ),
        "pass it as the first argument, without a name",
    ),
    **dict.fromkeys(
        ("texts", "corpus"),
        "pass the texts as the first argument, those that rank sorts as documents=",
    ),
    "activation_fct": "pass activation_fn=",
    "apply_softmax": "rank takes models with one score alone; leave it out",
    **dict.fromkeys(("top_n", "top_k"), "pass top_k= to rank, or to predict of a Classifier"),
    **dict.fromkeys(("docs", "passages"), "pass documents="),
    **dict.fromkeys(("return_text", "return_docs"), "pass return_documents="),
    "use_tqdm": "pass show_progress_bar=",
    **dict.fromkeys(("dimensions", "matryoshka_dim", "output_dimension"), "pass truncate_dim="),
    "normalize": "pass normalize_embeddings= to encode, activation_fn='sigmoid' to predict",
    "instruction": "pass prompt=, or task= where the model takes a task in words",
    **dict.fromkeys(("is_query", "input_type"), "call encode_query or encode_document"),
    **dict.fromkeys(
        ("return_dense", "return_sparse", "return_colbert_vecs"),
        "pass output_value='sparse' or 'multi_vector' for the other outputs of bge-m3",
    ),
    **dict.fromkeys(
        ("convert_to_sparse_tensor", "save_to_cpu"),
        "leave it out; a sparse vector is a dict of token id to weight",
    ),
    **dict.fromkeys(
        ("pool_factor", "protected_tokens", "token_pooling"),
        "vectors of tokens are all kept; leave it out",
    ),
    "precision": "pass it to the constructor for what is computed, or to encode for vectors in "
    "fewer bytes",
    "function_to_apply": "pass raw_scores=True for none, else leave it out",
    "return_all_scores": "predict returns all scores unless top_k= says otherwise",
}
"""Arguments of methods of the same libraries, PyLate's and those of transformers' pipelines."""
SET_ELSEWHERE: Final = frozenset(
    {
        *("device", "_target_device", "max_length", "dtype", "activation_fn"),
        *("default_activation_function", "max_active_dims"),
    }
)
"""Those that programs set there; other names a subclass may use for what it likes."""


def instead_of_argument(name: str) -> str | None:
    """Return what to do instead of an argument that a method lacks; None if it is not known."""
    if name in FOREIGN_ARGUMENTS:
        return FOREIGN_ARGUMENTS[name]
    return f"pass {name}= to the constructor" if name in _OPTION_NAMES else None


class _OfTheirClasses:
    """A name that programs ask a class of another library for, as in `Model.from_pretrained`.

    A metaclass would do it for all names, and no subclass could then be abstract or a protocol too.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(
            f"type object {owner.__name__!r} has no attribute {self._name!r}; "
            f"{FOREIGN_NAMES[self._name]}"
        )


class StrictAttributes:
    """Base of a session: says what to use in place of an attribute that it does not have."""

    if not TYPE_CHECKING:  # or type checkers would accept any attribute
        from_pretrained = _OfTheirClasses()
        from_args = _OfTheirClasses()
        load = _OfTheirClasses()
        list_supported_models = _OfTheirClasses()

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

        def __dir__(self) -> list[str]:
            """Return the names that it has: multiprocessing's managers get the value of each."""
            return [
                name
                for name in super().__dir__()
                if not isinstance(getattr_static(type(self), name, None), _OfTheirClasses)
            ]

        def __getitem__(self, index: object) -> NoReturn:
            """Raise TypeError: `model[0]`, and a loop over a model, are for modules of torch."""
            raise TypeError(f"{type(self).__name__!r} object is not subscriptable; {NO_MODULE}")

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: threads and engines can be neither pickled nor copied."""
        kind = type(self).__name__
        raise TypeError(
            f"{a_type(self)} cannot be pickled or copied; share it, which any number of threads "
            "may, give a library that copies what it gets a function that calls it, or send the "
            f"model's name and a Config to another process and make the {kind} there"
        )

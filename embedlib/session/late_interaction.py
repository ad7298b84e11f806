"""Late interaction (ColBERT): what an Embedder of such a model takes and how it tokenizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tokenizers import Tokenizer as RustTokenizer

from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.token_rows import TokenRows
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.config import Config
from embedlib.errors import ConfigError, ModelUnsupportedError
from embedlib.models.prompts import Role
from embedlib.models.spec import LateInteraction, ModelSpec

OUTPUTS: Final = ("sentence_embedding", "multi_vector", "token_embeddings")
"""Values of `output_value`, which all mean the only output there is: `encode` of
sentence-transformers' MultiVectorEncoder calls it the last, `Embedder.encode` the first."""


def check_one_vector(spec: ModelSpec, what: str) -> None:
    """Refuse a late-interaction model where one vector per text is needed.

    Raises:
        ConfigError: it is one.
    """
    if spec.late_interaction is not None:
        raise ConfigError(
            f"{what} needs one vector per text, and this is a late-interaction model, with one per "
            "token: take another model, load it in Python, or let embedlib index write its vectors "
            "into qdrant:// or edge:"
        )


def check_call(
    role: Role | None, truncate_dim: int | None, precision: str, max_active_dims: int | None
) -> None:
    """Check what a call asks of a late-interaction model.

    PyLate takes a text without a role for a query, sentence-transformers for neither a query nor a
    document: no answer would be right for both.

    Raises:
        ConfigError: there is no role, or the vectors cannot have that form.
    """
    if role is None:
        raise ConfigError(
            "a late-interaction model computes queries and documents differently; call "
            "encode_query or encode_document, or pass role='query' or role='document'"
        )
    if truncate_dim is not None or precision != "float32":
        given = f"truncate_dim = {truncate_dim}" if truncate_dim else f"precision = {precision!r}"
        raise ConfigError(
            f"{given} is for models with one vector per text, and this one has a vector per token; "
            "leave it out"
        )
    _check_active_dims(max_active_dims)


def _check_active_dims(max_active_dims: int | None) -> None:
    if max_active_dims is not None:
        raise ConfigError(
            f"max_active_dims = {max_active_dims} is for weights of tokens, and this model has a "
            "vector per token; leave it out"
        )


def check_can_calibrate(spec: ModelSpec) -> None:
    """Refuse ranges for a late-interaction model, whose vectors have float32 alone.

    Raises:
        ConfigError: it is one.
    """
    if spec.late_interaction is not None:
        raise ConfigError(
            "calibrate is for models with one vector per text, and this one has a vector per "
            "token, in float32 alone: there is nothing to calibrate"
        )


def check_output(output_value: str, chunks: object) -> None:
    """Check that a late-interaction model has an output.

    Raises:
        ConfigError: it has not.
    """
    if chunks is not None:
        raise ConfigError("chunks get one vector each, and this model has a vector per token")
    if output_value not in OUTPUTS:
        raise ConfigError(
            f"output_value = {output_value!r}: a late-interaction model has multi_vector alone"
        )


def without_choice(config: Config) -> Config:
    """Return the options of a late-interaction model, which has no lower precision and no windows.

    Raises:
        ConfigError: an option has no effect on such a model.
    """
    if config.precision not in ("auto", "float32"):
        raise ConfigError(
            f"precision = {config.precision!r}: a late-interaction model is computed in float32; "
            "leave precision out"
        )
    for name in ("truncate_dim", "quantization_ranges", "similarity_fn_name"):
        value = getattr(config, name)
        if value is not None:
            raise ConfigError(
                f"{name} = {value!r} is for models with one vector per text, and this one has a "
                "vector per token; leave it out"
            )
    _check_active_dims(config.max_active_dims)
    if config.on_truncate == "chunk":
        raise ConfigError(
            "on_truncate = 'chunk' makes one vector of several windows, and a late-interaction "
            "model has a vector per token; pass on_truncate='warn'"
        )
    return replace(config, precision="float32")


def tokenizer_of(
    role: Role, spec: ModelSpec, tokenizer: RustTokenizer, config: Config, meter: Meter
) -> Tokenizer:
    """Return what makes sequences of queries, or of documents.

    Source: `Transformer.preprocess` and `MultiVectorMask` of sentence-transformers 6.2.

    Raises:
        ModelUnsupportedError: the tokenizer lacks the token that fills up a query.
    """
    late = spec.late_interaction
    assert late is not None, "only of a late-interaction model; this is a bug in embedlib"
    return Tokenizer(
        tokenizer,
        late.query_tokens if role == "query" else late.document_tokens,
        on_truncate=config.on_truncate,
        excludes_prompt=False,
        meter=meter,
        token_rows=_token_rows(role, late, tokenizer),
    )


def _token_rows(role: Role, late: LateInteraction, tokenizer: RustTokenizer) -> TokenRows:
    skips = late.skips_in_queries if role == "query" else late.skips_in_documents
    found = [tokenizer.token_to_id(word) for word in late.skipped_words] if skips else []
    skipped = frozenset(id_ for id_ in found if id_ is not None)
    expansion = late.expansion
    if role != "query" or expansion is None:
        return TokenRows(skipped_ids=skipped)
    fill_id = tokenizer.token_to_id(expansion.token)
    if fill_id is None:
        raise ModelUnsupportedError(
            f"queries are filled up with the token {expansion.token!r}, which tokenizer.json lacks"
        )
    return TokenRows(
        skipped_ids=skipped,
        fill_id=fill_id,
        min_tokens=expansion.min_tokens,
        is_fill_attended=expansion.is_attended,
    )

"""Outputs of a sparse model: weights of tokens, by SPLADE or from a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.config import Config
from embedlib.models.opening import longest_sequence
from embedlib.models.prompts import Role
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.session.call import EmbeddingCall
from embedlib.session.token_outputs import CallAndFinish, TokenPipeline, TokenVectors, token_call
from embedlib.vectors.sparse import SparseVector, strongest
from embedlib.vectors.tokens import lexical_weights


class QueryTable:
    """The table of token weights that takes a sparse model's place for queries."""

    def __init__(
        self, files: ModelFiles, pipeline: TokenPipeline, config: Config, meter: Meter
    ) -> None:
        """Read the table's tokenizer.

        Args:
            files: of the model for documents and of the table.
            pipeline: where texts are looked up.
            config: the options of the model.
            meter: counts.

        Raises:
            ModelUnsupportedError: the tokenizer cannot be read.
        """
        assert files.queries is not None, "only a Router has a table"
        spec = files.queries.spec
        self.pipeline = pipeline
        self._default_role = files.default_role
        self.tokenizer = Tokenizer(
            load_tokenizer(files.queries),
            spec.max_seq_tokens,
            on_truncate=config.on_truncate,
            excludes_prompt=False,
            meter=meter,
            num_positions=longest_sequence(spec),
        )

    def computes(self, role: Role | None) -> bool:
        """Whether texts of a role are looked up in the table."""
        return (role or self._default_role) == "query"


def splade_call(call: EmbeddingCall) -> CallAndFinish:
    """Return a call whose rows are the weights of texts, and what cuts them."""

    def finish(rows: Iterable[SparseVector]) -> Any:
        finished = [strongest(row, call.max_active_dims) for row in rows]
        return finished[0] if call.is_single else finished

    return replace(call, can_divide=False), finish


def table_call(call: EmbeddingCall) -> CallAndFinish:
    """Return a call whose rows are the weights of a text's tokens, looked up in a table."""
    return token_call(call, partial(_present_tokens, num_kept=call.max_active_dims))


def _present_tokens(
    weights: TokenVectors, token_ids: list[int], num_kept: int | None
) -> SparseVector:
    return strongest(lexical_weights(weights, token_ids, ()), num_kept)

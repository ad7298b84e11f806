"""Outputs of a sparse model: weights of tokens, by SPLADE or from a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from embedlib.batching.callers import Callers
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.policy import BatchingPolicy
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizer import Tokenizer
from embedlib.config import Config
from embedlib.models.opening import longest_sequence
from embedlib.models.prompts import Role
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.session.call import Call, EmbeddingCall
from embedlib.session.model import RunningModel
from embedlib.session.token_outputs import TokenCall, TokenPipeline, TokenVectors
from embedlib.vectors.sparse import SparseVector, strongest
from embedlib.vectors.tokens import lexical_weights


class QueryTable:
    """The table of token weights that takes a sparse model's place for queries."""

    def __init__(
        self,
        model: RunningModel,
        files: ModelFiles,
        config: Config,
        meter: Meter,
        callers: Callers,
        policy: BatchingPolicy,
    ) -> None:
        """Read the table's tokenizer; the first query makes its engine.

        Args:
            model: the model for documents.
            files: of the table.
            config: the options of the model.
            meter: counts.
            callers: of the model.
            policy: how texts are divided into batches.

        Raises:
            ModelUnsupportedError: the tokenizer cannot be read.
        """
        assert model.files is not None, "a table is read from files"
        self._default_role = model.files.default_role
        self.tokenizer = Tokenizer(
            load_tokenizer(files),
            files.spec.max_seq_tokens,
            on_truncate=config.on_truncate,
            excludes_prompt=False,
            meter=meter,
            num_positions=longest_sequence(files.spec),
        )
        self._pipeline = TokenPipeline(model.lower_queries, config, meter, callers, policy)
        self.close = self._pipeline.close

    def computes(self, role: Role | None) -> bool:
        """Whether texts of a role are looked up in the table."""
        return (role or self._default_role) == "query"

    def pipeline(self) -> Pipeline:
        """Return where texts are looked up."""
        return self._pipeline.get()


class SpladeCall:
    """A call whose rows are the weights of texts."""

    def __init__(self, call: EmbeddingCall) -> None:
        self._is_single = call.is_single
        self._num_kept = call.max_active_dims
        self.call: Call = replace(call, can_divide=False)
        """The call that the session runs."""

    def finish(self, rows: Iterable[SparseVector]) -> Any:
        """Return the weights of the texts as a list; for a single str, its own."""
        finished = [strongest(row, self._num_kept) for row in rows]
        return finished[0] if self._is_single else finished


def table_call(call: EmbeddingCall) -> TokenCall:
    """Return a call whose rows are the weights of a text's tokens, looked up in a table."""
    return TokenCall(call, partial(_present_tokens, num_kept=call.max_active_dims))


def _present_tokens(
    weights: TokenVectors, token_ids: list[int], num_kept: int | None
) -> SparseVector:
    return strongest(lexical_weights(weights, token_ids, ()), num_kept)

"""Pairs of texts to sequences: the PairTokenizer, which any thread may call."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import tokenizers

from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.pair_forms import EncodedPair, Pair, TemplateForm, TokenizerForm
from embedlib.batching.tokenizing.refusals import check_text, too_long
from embedlib.batching.tokenizing.tokenizer import Side
from embedlib.config import OnTruncate
from embedlib.errors import InputError
from embedlib.models.spec import ModelSpec


class PairTokenizer:
    """Pairs to token ids, truncated to `max_seq_tokens`; the counterpart of `Tokenizer`."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        spec: ModelSpec,
        *,
        on_truncate: OnTruncate,
        meter: Meter,
        keeps_second: bool = False,
    ) -> None:
        """Choose the layout of pairs for this model: its template, or that of its tokenizer.

        Args:
            tokenizer: the model's tokenizer.
            spec: describes the model.
            on_truncate: what to do with long pairs.
            meter: counts.
            keeps_second: truncate the first text alone: the second is the hypothesis of zero-shot
                classification. A template, which truncates the second, ignores it.

        Raises:
            ModelUnsupportedError: the tokenizer lays out a pair in an unknown way.
        """
        self.max_seq_tokens = spec.max_seq_tokens
        self._form: TokenizerForm | TemplateForm
        head = spec.head
        assert head is not None, "pairs are for scoring models; this is a bug in embedlib"
        if head.template is not None:
            self._form = TemplateForm(tokenizer, head.template)
        else:
            has_types = head.has_token_types if spec.encoder.num_token_types > 1 else False
            self._form = TokenizerForm(tokenizer, has_types=has_types, keeps_second=keeps_second)
        self._on_truncate = on_truncate
        self._side: Side = "right"
        self._meter = meter

    def with_limit(self, max_seq_tokens: int) -> PairTokenizer:
        """Return a copy with another length limit; calls in progress keep this one."""
        limited = copy(self)
        limited.max_seq_tokens = max_seq_tokens
        return limited

    def with_truncation(self, on_truncate: OnTruncate, side: Side) -> PairTokenizer:
        """Return a copy that does something else with long pairs."""
        other = copy(self)
        other._on_truncate, other._side = on_truncate, side
        return other

    @property
    def num_special_tokens(self) -> int:
        """Tokens around every pair: special ones, or those of the template."""
        return self._form.num_special_tokens

    def __call__(
        self, job: Job, first_row: int, pairs: Sequence[Pair], prompt: str
    ) -> list[TokenizedText]:
        """Tokenize consecutive pairs of a job.

        Args:
            job: the job of the pairs.
            first_row: row of the first pair.
            pairs: what to tokenize.
            prompt: text put before each first text; with a template, its instruction.

        Raises:
            InputError: a text is not a str or has a lone surrogate, a pair has no tokens, or a
                query is in the model's template already, which would be filled twice.
            SequenceTooLongError: a pair is longer than the limit and on_truncate is "error".
        """
        started = self._meter.clock()
        encoded = self._encode(job, first_row, pairs, prompt)
        truncated = [
            (job.message_row(row), pair.num_tokens)
            for row, pair in enumerate(encoded, first_row)
            if pair.num_tokens > len(pair.ids)
        ]
        num_truncated = len(truncated)
        if job.rows_per_text > 1:
            truncated = _each_once(truncated, job)
        if truncated and self._on_truncate == "error":
            remedy = '; shorten them, or pass on_truncate="warn" to truncate them'
            raise too_long(truncated, self.max_seq_tokens, remedy)
        now = self._meter.clock()
        sequences = [
            TokenizedText(job, row, pair.ids, num_type0_tokens=pair.num_type0_tokens, queued_at=now)
            for row, pair in enumerate(encoded, first_row)
        ]
        num_tokens = sum([len(pair.ids) for pair in encoded])
        job.add_tokenized(num_tokens, truncated, now - started, now)
        self._meter.tokenized(now - started, num_truncated)
        return sequences

    def _encode(
        self, job: Job, first_row: int, pairs: Sequence[Pair], prompt: str
    ) -> list[EncodedPair]:
        what = "pair" if job.rows_per_text == 1 else "text"
        check_text("the prompt", prompt)
        for row, pair in enumerate(pairs, first_row):
            number = job.message_row(row)
            for name, text in zip(("first", "second"), pair, strict=True):
                check_text(f"the {name} text of pair {number}", text)
            if self._form.first_words and pair[0].startswith(self._form.first_words):
                raise InputError(
                    f"the first text of pair {number} is in this model's template already: it "
                    f"begins with {self._form.first_words!r:.40}; embedlib fills the template, so "
                    "pass the query and the document alone"
                )
        encoded = self._form.encode(pairs, prompt, self.max_seq_tokens, self._side)
        for row, encoded_pair in enumerate(encoded, first_row):
            if not encoded_pair.ids:
                raise InputError(f"{what} {job.message_row(row)} has no tokens; leave it out")
        return encoded


def _each_once(truncated: list[tuple[int, int]], job: Job) -> list[tuple[int, int]]:
    """Return the texts of truncated pairs, each once with its first truncated pair's length."""
    lengths: dict[int, int] = {}
    for row, num_tokens in truncated:
        lengths.setdefault(row, num_tokens)
    if job.truncated:  # the last text may have had pairs among those tokenized before
        lengths.pop(job.truncated[-1][0], None)
    return list(lengths.items())

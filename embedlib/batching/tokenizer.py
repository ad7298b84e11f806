"""Texts to sequences: the Tokenizer, which any thread may call."""

from __future__ import annotations

from collections.abc import Sequence as Items

import tokenizers

from embedlib.batching.sequence import Job, Sequence
from embedlib.batching.stats import Meter
from embedlib.config import OnTruncate
from embedlib.errors import InputError, SequenceTooLongError

TRUNCATED_ROWS_TOLD = 10
"""Rows named in a message; the rest is counted."""


class Tokenizer:
    """Texts to token ids, cut at `max_seq_tokens`.

    The Rust tokenizer is configured once, by its loader, and only read from then on, so any number
    of threads may call it; it releases the GIL and spreads a micro-batch over all cores.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        max_seq_tokens: int,
        *,
        on_truncate: OnTruncate,
        excludes_prompt: bool,
        meter: Meter,
    ) -> None:
        self.max_seq_tokens = max_seq_tokens
        self._tokenizer = tokenizer
        self._on_truncate = on_truncate
        self._excludes_prompt = excludes_prompt
        self._meter = meter
        # A text is cut between the special tokens that the tokenizer puts around it.
        mask = tokenizer.encode("a").special_tokens_mask
        self._num_leading = mask.index(0) if 0 in mask else 0
        self._num_trailing = mask[::-1].index(0) if 0 in mask else 0

    @property
    def num_special_tokens(self) -> int:
        """Tokens added around every text."""
        return self._num_leading + self._num_trailing

    def __call__(self, job: Job, first_row: int, texts: Items[str], prompt: str) -> list[Sequence]:
        """Tokenize consecutive texts of a job.

        Raises:
            InputError: a text is not a str, holds a lone surrogate or has no tokens.
            SequenceTooLongError: a text is longer than the limit and on_truncate is "error".
        """
        started = self._meter.clock()
        num_prompt_tokens = self._count_prompt(prompt) if self._excludes_prompt and prompt else 0
        sequences, truncated = [], []
        told_row = job.first_row + first_row
        for index, ids in enumerate(self._encode(texts, prompt, told_row)):
            if len(ids) > self.max_seq_tokens:
                truncated.append((told_row + index, len(ids)))
                ids = self._cut(ids)
            if not ids:
                raise InputError(
                    f"text {told_row + index} has no tokens: {texts[index]!r:.60}; leave it out"
                )
            sequences.append(Sequence(job, first_row + index, ids, num_prompt_tokens))
        if truncated and self._on_truncate == "error":
            raise SequenceTooLongError(
                f"{describe_truncated(truncated, len(truncated))}, the limit is "
                f'{self.max_seq_tokens}; split them, or pass on_truncate="warn" to cut them',
                rows=tuple(row for row, _ in truncated),
                max_seq_tokens=self.max_seq_tokens,
            )
        job.truncated += truncated
        now = self._meter.clock()
        for sequence in sequences:
            sequence.queued_at = now
        self._meter.tokenized(now - started, len(truncated))
        return sequences

    def _encode(self, texts: Items[str], prompt: str, first_row: int) -> list[list[int]]:
        if not all(isinstance(text, str) for text in texts):  # tokenizers would join a pair of str
            raise _explain(texts, first_row, TypeError("not a str"))
        try:
            prompted = [prompt + text for text in texts] if prompt else list(texts)
            if len(prompted) == 1:  # a batch of one would wake the thread pool for nothing
                return [self._tokenizer.encode(prompted[0]).ids]
            return [item.ids for item in self._tokenizer.encode_batch_fast(prompted)]
        except Exception as error:  # tokenizers raises bare Exception and TypeError
            raise _explain(texts, first_row, error) from error

    def _cut(self, ids: list[int]) -> list[int]:
        """Drop tokens at the end of the text, as transformers' truncation does."""
        if not self._num_trailing:
            return ids[: self.max_seq_tokens]
        return ids[: self.max_seq_tokens - self._num_trailing] + ids[-self._num_trailing :]

    def _count_prompt(self, prompt: str) -> int:
        """Tokens of a prompt by itself, without what the tokenizer puts at the end.

        Source: `Transformer._get_prompt_length` of sentence-transformers.
        """
        return len(self._tokenizer.encode(prompt).ids) - self._num_trailing


def describe_truncated(truncated: Items[tuple[int, int]], num_truncated: int) -> str:
    """Say which rows are too long: '2 texts are too long (row 3: 812 tokens, row 9: 300 ...)'.

    Args:
        truncated: row and number of tokens, of all of them or of the first ones.
        num_truncated: how many there are in all.
    """
    told = sorted(truncated)[:TRUNCATED_ROWS_TOLD]
    rows = ", ".join(f"row {row}: {num_tokens} tokens" for row, num_tokens in told)
    more = num_truncated - len(told)
    verb = "text is" if num_truncated == 1 else "texts are"
    return f"{num_truncated} {verb} too long ({rows}{f' and {more} more' if more else ''})"


def _explain(texts: Items[str], first_row: int, error: Exception) -> InputError:
    """Find the text that the tokenizer refused."""
    for row, text in enumerate(texts, first_row):
        if not isinstance(text, str):
            return InputError(
                f"text {row} is {text!r:.60}, a {type(text).__name__}; it must be a str"
            )
        try:
            text.encode()
        except UnicodeEncodeError as bad:
            return InputError(
                f"text {row} has the lone surrogate {text[bad.start]!r} at character {bad.start}; "
                "that is not Unicode, repair it with text.encode('utf-8', 'replace').decode()"
            )
    return InputError(
        f"texts {first_row} to {first_row + len(texts) - 1} failed to tokenize: {error}"
    )

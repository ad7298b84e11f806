"""Texts to sequences: the Tokenizer, which any thread may call."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import takewhile
from typing import Literal, TypeVar

import tokenizers

from embedlib.batching.packed import PackedTexts, join
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.refusals import (
    check_ids,
    check_left,
    check_room,
    check_text,
    no_tokens,
    too_long,
)
from embedlib.batching.tokenizing.token_ids import TokenIds, encode_one
from embedlib.batching.tokenizing.token_rows import TokenRows
from embedlib.batching.tokenizing.windows import divide
from embedlib.config import OnTruncate
from embedlib.errors import ConfigError
from embedlib.models.prompts import Prompt

T = TypeVar("T")

Side = Literal["left", "right"]
"""Where a text that is too long loses tokens."""
Encoded = tuple[list[int], int | None]
"""The ids of a text, and their number before truncation; None: not truncated."""


class Tokenizer:
    """Texts to token ids, truncated to `max_seq_tokens`.

    Its loader configures the Rust tokenizer once; afterwards it is only read, so any number of
    threads may call it. It releases the GIL and spreads a micro-batch over all cores.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        max_seq_tokens: int,
        *,
        on_truncate: OnTruncate,
        excludes_prompt: bool,
        meter: Meter,
        num_positions: int | None = None,
        dropped_token_id: int | None = None,
        token_rows: TokenRows | None = None,
        keeps_parts: bool = False,
    ) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: from `load_tokenizer`.
            max_seq_tokens: texts are truncated to this many tokens.
            on_truncate: what happens to a longer text.
            excludes_prompt: count the prompt's tokens, because pooling leaves them out.
            meter: collects the statistics.
            num_positions: tokens that the engine has positions for, if more than
                `max_seq_tokens`: few-shot examples may use them.
            dropped_token_id: as in `ModelSpec`.
            token_rows: of a late-interaction model, for the role of the texts.
            keeps_parts: as in `TokenIds`.
        """
        self.max_seq_tokens = max_seq_tokens
        self._num_positions = num_positions or 0
        self._tokenizer = tokenizer
        self._encode = TokenIds(tokenizer, keeps_parts=keeps_parts)
        self._dropped_token_id = dropped_token_id
        self._token_rows = token_rows
        self._on_truncate = on_truncate
        self._side: Side = "right"
        self._excludes_prompt = excludes_prompt
        self._meter = meter
        # Truncation keeps the special tokens that the tokenizer puts around a text.
        mask = tokenizer.encode("a").special_tokens_mask
        self._num_leading = mask.index(0) if 0 in mask else 0
        self._num_trailing = mask[::-1].index(0) if 0 in mask else 0

    def with_limit(self, max_seq_tokens: int) -> Tokenizer:
        """Return a copy with another length limit; calls in progress keep this one."""
        limited = copy(self)
        limited.max_seq_tokens = max_seq_tokens
        return limited

    def with_truncation(self, on_truncate: OnTruncate, side: Side) -> Tokenizer:
        """Return a copy that does something else with long texts."""
        other = copy(self)
        other._on_truncate, other._side = on_truncate, side
        return other

    @property
    def num_special_tokens(self) -> int:
        """Tokens added around every text."""
        return self._num_leading + self._num_trailing

    @property
    def _longest(self) -> int:
        """Maximum tokens of a sequence, few-shot examples included."""
        return max(self._num_positions, self.max_seq_tokens)

    def count_room(self, prompt: Prompt) -> int:
        """Return how many tokens of a text are kept behind this prompt."""
        room = self._room(self._count(prompt.examples), self._count(prompt.suffix))
        return room - self._count(prompt.prefix)

    def __call__(
        self, job: Job, first_row: int, texts: Sequence[str], prompt: Prompt
    ) -> Sequence[TokenizedText]:
        """Tokenize consecutive texts of a job; with on_truncate "chunk" one may become several.

        Raises:
            ConfigError: the prompt leaves no room for a text, or would be truncated on the left.
            InputError: a text is not a str, it or the prompt has a lone surrogate, or a text has no
                tokens; the prompt's do not count if pooling leaves them out.
            SequenceTooLongError: a text is longer than the limit and on_truncate is "error", or
                "chunk" with a prompt that has a part behind the text.
        """
        started = self._meter.clock()
        if around := prompt.examples + prompt.prefix + prompt.suffix:
            check_text("the prompt", around)
        if self._encode.keeps_parts and around == prompt.prefix:
            packed = self._pack(job, first_row, texts, prompt.prefix, started)
            if packed is not None:
                return packed
        num_prompt_tokens = 0
        if self._side == "left":
            check_left(prompt, is_excluded=self._excludes_prompt)
        if self._excludes_prompt and prompt.prefix:
            num_prompt_tokens = self._count_prompt(prompt)
        sequences: list[TokenizedText] = []
        truncated: list[tuple[int, int]] = []
        message_row = job.first_row + first_row
        encode = self._encode_framed if prompt.suffix else self._encode_plain
        for index, (ids, num_tokens) in enumerate(encode(texts, prompt, message_row)):
            if num_tokens is not None:
                if not truncated and self._side == "right":
                    room = self.count_room(prompt)
                    num_around = self.max_seq_tokens - self._num_trailing - room
                    check_room(room, num_around, self.max_seq_tokens)
                truncated.append((message_row + index, num_tokens))
            ids = self._without_dropped(ids)
            if len(ids) <= num_prompt_tokens:
                raise no_tokens(
                    message_row + index,
                    texts[index],
                    is_behind_prompt=num_prompt_tokens > 0,
                    is_joined=num_prompt_tokens > 0 and self._count(texts[index]) > 0,
                )
            # Left whole to be divided; in a frame, examples take positions beyond the limit.
            if len(ids) > self.max_seq_tokens and not prompt.suffix:
                sequences += self._divide(job, first_row + index, ids, prompt)
            else:
                sequences.append(TokenizedText(job, first_row + index, ids, num_prompt_tokens))
        if truncated and self._on_truncate in ("error", "chunk"):
            remedy = '; split them, or pass on_truncate="warn" to truncate them'
            if self._on_truncate == "chunk":
                remedy = f" and their prompt goes on behind them, so they cannot be divided{remedy}"
            raise too_long(truncated, self.max_seq_tokens, remedy)
        self._note(job, sequences, truncated, started)
        return sequences

    def _pack(
        self, job: Job, first_row: int, texts: Sequence[str], prefix: str, started: float
    ) -> PackedTexts | None:
        """Tokenize texts that need nothing but their ids; None: one needs more, or is refused."""
        if not texts or (prefix and (self._excludes_prompt or self._side == "left")):
            return None  # the prompt's tokens must be counted, or its place checked
        rows = self._encode.packed(texts, prefix, job.first_row + first_row)
        if max(map(len, rows)) > 4 * self.max_seq_tokens:
            return None
        token_ids, lens = join(rows, self._dropped_token_id)
        if not min(lens):
            return None
        now = self._meter.clock()
        job.add_tokenized(len(token_ids), (), now - started, now)
        self._meter.tokenized(now - started, 0)
        return PackedTexts(job, first_row, token_ids, lens, now)

    def take_ids(
        self, job: Job, first_row: int, texts: Sequence[Sequence[int]]
    ) -> list[TokenizedText]:
        """Take the token ids of consecutive texts of a job as they are, special tokens included.

        Raises:
            InputError: a text has no ids, or one that the tokenizer does not have.
            SequenceTooLongError: a text is longer than the limit; which ids to drop is not known.
        """
        started = self._meter.clock()
        message_row = job.first_row + first_row
        kept = [self._without_dropped(list(ids)) for ids in texts]
        check_ids(kept, message_row, self._tokenizer, self.max_seq_tokens)
        sequences = [TokenizedText(job, row, ids) for row, ids in enumerate(kept, first_row)]
        self._note(job, sequences, [], started)
        return sequences

    def _without_dropped(self, ids: list[int]) -> list[int]:
        if self._dropped_token_id not in ids:
            return ids
        return [id_ for id_ in ids if id_ != self._dropped_token_id]

    def _note(
        self,
        job: Job,
        sequences: list[TokenizedText],
        truncated: Sequence[tuple[int, int]],
        started: float,
    ) -> None:
        """Record sequences that are about to be queued."""
        now = self._meter.clock()
        for sequence in sequences:
            sequence.queued_at = now
            if self._token_rows is not None:
                self._token_rows.apply(sequence)
        num_tokens = sum([len(sequence.token_ids) for sequence in sequences])
        job.add_tokenized(num_tokens, truncated, now - started, now)
        self._meter.tokenized(now - started, len(truncated))

    def _encode_plain(self, texts: Sequence[str], prompt: Prompt, first_row: int) -> list[Encoded]:
        """Return the ids of texts with a prefix, truncated unless they are divided later."""
        found: list[Encoded] = []
        for ids in self._encode(texts, prompt.prefix, first_row):
            if len(ids) > self.max_seq_tokens and self._on_truncate != "chunk":
                kept = self._truncate(ids, self.max_seq_tokens, self._num_trailing)
                found.append((kept, len(ids)))
            else:
                found.append((ids, None))
        return found

    def _encode_framed(self, texts: Sequence[str], prompt: Prompt, first_row: int) -> list[Encoded]:
        """Return the ids of texts between examples and a suffix; only the text is truncated.

        Every text is tokenized, truncated to the room that is left, and decoded; special tokens may
        gain a space on the way, as in the reference.

        Source: `encode_queries_single_device` of FlagEmbedding,
        inference/embedder/decoder_only/icl.py. It truncates a second time and may lose part of the
        suffix; here the text loses these tokens instead.
        """
        num_examples, num_suffix = self._count(prompt.examples), self._count(prompt.suffix)
        room = self._room(num_examples, num_suffix)
        limit = (num_examples + num_suffix + self.max_seq_tokens + 8) // 8 * 8 + 8
        limit = min(limit, self._longest)
        bare = list(self._encode(texts, prompt.prefix, first_row, add_special_tokens=False))
        kept = self._tokenizer.decode_batch([ids[:room] for ids in bare], skip_special_tokens=False)
        framed = [prompt.examples + text + prompt.suffix for text in kept]
        found: list[Encoded] = []
        num_kept = num_suffix + self._num_trailing
        for before, ids in zip(bare, self._encode(framed, "", first_row), strict=True):
            if len(ids) > limit:
                ids = self._truncate(ids, limit, num_kept)
            # The number for messages: the limit plus the tokens that the text is too long by.
            num_tokens = self.max_seq_tokens + len(before) - room
            found.append((ids, num_tokens if len(before) > room else None))
        return found

    def _divide(self, job: Job, row: int, ids: list[int], prompt: Prompt) -> list[TokenizedText]:
        """Return a text's windows: as few as possible, of equal length, each with the prompt.

        Each token of the text is in exactly one of them.

        Raises:
            ConfigError: the prompt leaves no room for a text.
        """
        num_head = self._num_leading
        if prompt.prefix:
            # With the text behind it the prompt's last token may differ; then it counts as text.
            alone = self._tokenizer.encode(prompt.prefix).ids
            pairs = zip(alone[: len(alone) - self._num_trailing], ids, strict=False)
            num_head = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_excluded = self._excludes_prompt and bool(prompt.prefix)
        whole = TokenizedText(job, row, ids, num_head if is_excluded else 0)
        return divide(whole, num_head, self._num_trailing, self.max_seq_tokens)

    def offsets(self, text: str, prompt: Prompt, row: int = 0) -> list[tuple[int, int]]:
        """Return the character span of every token of a text, truncated like its sequence.

        The spans of special tokens and of the prompt are empty: (0, 0). `row` is for messages.

        Raises:
            ConfigError: the prompt has a part behind the text.
            InputError: the text is not a str or has a lone surrogate.
        """
        if prompt.suffix:
            raise ConfigError(
                f"chunks need a text with nothing behind it, and {prompt.suffix!r:.60} goes behind "
                "this one"
            )
        list(self._encode([text], "", row))  # raises for a bad text
        found = encode_one(self._tokenizer, prompt.prefix + text, add_special_tokens=True)
        spans = list(zip(found.offsets, found.ids, strict=True))
        if len(spans) > self.max_seq_tokens:
            spans = self._truncate(spans, self.max_seq_tokens, self._num_trailing)
        offsets = [span for span, id_ in spans if id_ != self._dropped_token_id]
        num_front = len(prompt.prefix)
        return [(max(0, start - num_front), max(0, end - num_front)) for start, end in offsets]

    def _room(self, num_examples: int, num_suffix: int) -> int:
        """Return how many tokens prefix and text may have together.

        Args:
            num_examples: tokens of the examples; they take room only beyond `max_seq_tokens`.
            num_suffix: tokens behind the text.

        Raises:
            ConfigError: there is no room left.
        """
        limit = min(self.max_seq_tokens, self._longest - num_examples)
        room = limit - num_suffix - self.num_special_tokens
        if room < 1:
            taken = f"what goes behind the text has {num_suffix} tokens"
            fewer = ""
            if num_examples:
                taken, fewer = f"the examples have {num_examples} tokens", "fewer examples, or "
            raise ConfigError(
                f"{taken}, which leaves no room for a query: the model takes {self._longest}, "
                f"max_seq_length is {self.max_seq_tokens}; pass {fewer}a higher max_seq_tokens"
            )
        return room

    def _truncate(self, ids: list[T], limit: int, num_kept: int) -> list[T]:
        """Keep `limit` items: drop those before the last `num_kept`, or behind the leading ones.

        Source: `truncate_encoding` of the tokenizers library, which makes room for special tokens.
        """
        if self._side == "left":
            return ids[: self._num_leading] + ids[len(ids) - limit + self._num_leading :]
        return ids[: limit - num_kept] + ids[len(ids) - num_kept :]

    def _count(self, text: str) -> int:
        """Count the tokens of a part of a prompt, without special tokens."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids) if text else 0

    def _count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt, without special tokens at the end.

        Source: `Transformer._get_prompt_length` of sentence-transformers.
        """
        ids = self._tokenizer.encode(prompt.examples + prompt.prefix).ids
        return len(ids) - self._num_trailing

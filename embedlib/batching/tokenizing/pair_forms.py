"""The layouts of a pair: how two texts become the token ids of one sequence.

A pair is joined as the model's tokenizer does it, or filled into a template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import tokenizers

from embedlib.batching.tokenizing.refusals import lacking
from embedlib.batching.tokenizing.token_ids import check_whole, encode_each, encode_one
from embedlib.batching.tokenizing.tokenizer import Side
from embedlib.errors import ConfigError, InputError, ModelUnsupportedError
from embedlib.models.reading.tokenizer_json import is_library_error
from embedlib.models.spec import PairTemplate

Pair = tuple[str, str]
"""A query and a document, or any two texts that are compared."""


@dataclass(frozen=True)
class EncodedPair:
    """The token ids of one pair."""

    ids: list[int]
    """After truncation."""
    num_tokens: int
    """Before truncation."""
    num_type0_tokens: int | None = None
    """Leading tokens of type 0; None: all are."""


class TokenizerForm:
    """A pair as the tokenizer's own post-processor lays it out: [CLS] first [SEP] second [SEP].

    The texts are tokenized separately and joined here, so that a query is tokenized only once
    for all its documents.
    """

    first_words: str | None = None
    """A query that begins with them is in the template already; None: there are none."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, *, has_types: bool | None, keeps_second: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._keeps_second = keeps_second
        probe = tokenizer.encode("a", "a")
        # 0 and 1 are the texts, None the special tokens.
        first, second = (probe.sequence_ids.count(text) for text in (0, 1))
        start = probe.sequence_ids.index(0) if first else 0
        middle = probe.sequence_ids.index(1) if second else 0
        if has_types is None and any(probe.type_ids):
            raise ModelUnsupportedError(
                "tokenizer_config.json: model_input_names is missing; accepted for pairs of texts: "
                "a list with or without token_type_ids, since transformers 4 passes them for this "
                "tokenizer_class and 5 does not"
            )
        types = probe.type_ids if has_types else [0] * len(probe.ids)
        num_zeros = types.count(0)
        expected: list[int | None] = [None] * len(probe.ids)
        expected[start : start + first] = [0] * first
        expected[middle : middle + second] = [1] * second
        in_order = probe.sequence_ids == expected and 0 < start + first <= middle
        typed = types == [0] * num_zeros + [1] * (len(types) - num_zeros)
        if not (
            in_order and typed and num_zeros in (len(types), *range(start + first, middle + 1))
        ):
            raise ModelUnsupportedError(
                f"tokenizer.json: lays out a pair of texts as {probe.tokens} of the types "
                f"{probe.type_ids}; accepted: the first text, then the second, of the types 0 and "
                "1 or 0 and 0"
            )
        self._before = probe.ids[:start]
        self._between = probe.ids[start + first : middle]
        self._after = probe.ids[middle + second :]
        self._num_zeros_between = None if num_zeros == len(types) else num_zeros - start - first
        self.num_special_tokens = len(self._before + self._between + self._after)
        """Tokens that every pair has, whatever its texts are."""

    def encode(
        self, pairs: Sequence[Pair], prompt: str, max_seq_tokens: int, side: Side
    ) -> list[EncodedPair]:
        """Return the ids of every pair; its longer text is truncated first, or its first one alone.

        Raises:
            InputError: the second is to be kept and leaves no room for the first.
        """
        firsts = list(dict.fromkeys(prompt + first for first, _ in pairs))
        rows = _encode_all(self._tokenizer, [*firsts, *(second for _, second in pairs)])
        ids_of = dict(zip(firsts, rows, strict=False))
        room = max_seq_tokens - self.num_special_tokens
        encoded = []
        for (first_text, second_text), second in zip(pairs, rows[len(firsts) :], strict=True):
            first = ids_of[prompt + first_text]
            if self._keeps_second:
                num_first, num_second = min(len(first), room - len(second)), len(second)
                if num_first < min(1, len(first)):
                    raise InputError(
                        f"the hypothesis {second_text!r:.60} takes {num_second} of the "
                        f"{max_seq_tokens} tokens of the limit, and special tokens "
                        f"{self.num_special_tokens}: nothing is left for the text; shorten the "
                        "label or raise the limit"
                    )
            else:
                num_first, num_second = longest_first(len(first), len(second), room)
            num_zeros = None
            if self._num_zeros_between is not None:
                num_zeros = len(self._before) + num_first + self._num_zeros_between
            encoded.append(
                EncodedPair(
                    [
                        *self._before,
                        *_keep(first, num_first, side),
                        *self._between,
                        *_keep(second, num_second, side),
                        *self._after,
                    ],
                    self.num_special_tokens + len(first) + len(second),
                    num_zeros,
                )
            )
        return encoded


class TemplateForm:
    """A pair filled into a `PairTemplate`; prefix and suffix are never truncated."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, template: PairTemplate) -> None:
        assert template.body.endswith("{document}"), "text after it belongs in the suffix"
        self._tokenizer = tokenizer
        # A prefix of one special token, such as <s>, may begin a text for another reason.
        words = template.prefix.strip()
        self.first_words = words if len(words.split()) > 1 else None
        self._tail = template.tail
        # Split before it is filled, since the texts may contain line breaks.
        self._parts = re.split("(\n)", template.body) if template.lines_apart else [template.body]
        self._prefix, self._suffix = (
            tokenizer.encode(part, add_special_tokens=False).ids
            for part in (template.prefix, template.suffix)
        )
        self.num_special_tokens = len(self._prefix) + len(self._suffix)

    def encode(
        self, pairs: Sequence[Pair], prompt: str, max_seq_tokens: int, side: Side
    ) -> list[EncodedPair]:
        """Return the ids of every pair, with its document truncated.

        Raises:
            ConfigError: on the left.
            InputError: a query leaves no room for its document.
        """
        if side == "left":
            raise ConfigError(
                "this model reads a pair in a template, whose document is truncated on the right; "
                "leave the left side out"
            )
        room = max_seq_tokens - self.num_special_tokens
        encoded = []
        for pair, ids in zip(pairs, self._encode_bodies(pairs, prompt), strict=True):
            kept = ids
            if len(ids) > room:
                self._check_room(pair[0], prompt, room)
                kept = self._cut(pair, prompt, len(ids), room) if self._tail else ids[:room]
            encoded.append(
                EncodedPair(
                    [*self._prefix, *kept, *self._suffix],
                    self.num_special_tokens + len(ids),
                )
            )
        return encoded

    def _cut(self, pair: Pair, instruction: str, num_tokens: int, room: int) -> list[int]:
        """Return the ids of a body whose document is cut so that the tail fits behind it."""
        query, document = pair
        found = encode_one(self._tokenizer, document, add_special_tokens=False)
        ends = [end for _, end in found.offsets]
        num_kept = len(ends) - (num_tokens - room)
        while num_kept > 0:
            [ids] = self._encode_bodies([(query, document[: ends[num_kept - 1]])], instruction)
            if len(ids) <= room:
                return ids
            num_kept -= len(ids) - room
        [ids] = self._encode_bodies([(query, "")], instruction)
        return ids

    def _encode_bodies(self, pairs: Sequence[Pair], instruction: str) -> list[list[int]]:
        *first, last = self._parts
        # Without an instruction, the blank in front of it is left out, too.
        tail = self._tail if instruction else self._tail.replace(" {instruction}", "")
        parts = [*first, last + tail]
        texts = [
            part.format(instruction=instruction, query=query, document=document)
            for query, document in pairs
            for part in parts
        ]
        rows = _encode_all(self._tokenizer, texts)
        num_parts = len(self._parts)
        return [
            list(chain.from_iterable(rows[start : start + num_parts]))
            for start in range(0, len(rows), num_parts)
        ]

    def _check_room(self, query: str, instruction: str, room: int) -> None:
        """Refuse a query that leaves no room for any of its document."""
        [ids] = self._encode_bodies([(query, "")], instruction)
        if len(ids) >= room:
            limit = room + self.num_special_tokens
            raise InputError(
                f"the query {query!r:.60} takes {len(ids)} of the {room} tokens that the limit of "
                f"{limit} leaves, nothing is left for a document; shorten it or the instruction"
            )


def _keep(ids: list[int], num_kept: int, side: Side) -> list[int]:
    return ids[:num_kept] if side == "right" else ids[len(ids) - num_kept :]


def longest_first(num_first: int, num_second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept: the longer one is truncated first.

    Source: `truncate_encodings` of the tokenizers library, strategy LongestFirst.
    """
    if num_first + num_second <= room:
        return num_first, num_second
    shorter = min(num_first, num_second)
    if 2 * shorter <= room:
        longer = room - shorter
        return (shorter, longer) if num_first <= num_second else (longer, shorter)
    less, more = room // 2, room - room // 2
    return (less, more) if num_first <= num_second else (more, less)


def _encode_all(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return every text's ids without special tokens."""
    check_whole(tokenizer)
    try:
        return list(encode_each(tokenizer, texts, add_special_tokens=False))
    except BaseException as error:  # tokenizers raises bare Exception
        if not is_library_error(error):
            raise
        lack = lacking(error)
        if lack is not None:
            raise lack from error
        reason = " ".join(str(error).split())
        raise InputError(f"{len(texts)} texts failed to tokenize: {reason:.300}") from error

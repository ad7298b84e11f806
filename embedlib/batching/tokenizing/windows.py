"""A text that is too long as several sequences, for on_truncate="chunk"."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from embedlib.batching.sequence import TokenizedText
from embedlib.batching.tokenizing.refusals import check_room


def divide(
    whole: TokenizedText, num_head: int, num_tail: int, max_seq_tokens: int
) -> list[TokenizedText]:
    """Return a text's windows: as few as possible, of equal length.

    Each token between head and tail is in exactly one of them.

    Args:
        whole: the text.
        num_head: leading tokens that each window gets.
        num_tail: trailing tokens that each window gets.
        max_seq_tokens: the longest window.

    Raises:
        ConfigError: the head leaves no room for a text.
    """
    ids = whole.token_ids
    end = len(ids) - num_tail
    room, num_tokens = max_seq_tokens - num_head - num_tail, end - num_head
    check_room(room, num_head, max_seq_tokens)
    num_windows = -(-num_tokens // room)
    places = [num_head + num_tokens * index // num_windows for index in range(num_windows + 1)]
    return [
        replace(
            whole,
            token_ids=ids[:num_head] + ids[first:last] + ids[end:],
            share=(last - first) / num_tokens,
            num_windows=num_windows,
        )
        for first, last in pairwise(places)
    ]

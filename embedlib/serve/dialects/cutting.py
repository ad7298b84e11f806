"""Texts without what is beyond so many tokens, where a request says how many."""

from __future__ import annotations

import tokenizers

from embedlib.batching.tokenizing.token_ids import encode_one
from embedlib.batching.tokenizing.tokenizer import Side
from embedlib.serve.models.estimate import check_lengths, count_chars
from embedlib.serve.requests.exchange import Exchange


async def cut_texts(
    exchange: Exchange,
    tokenizer: tokenizers.Tokenizer,
    texts: list[str],
    limit: int,
    field: str,
    side: Side = "right",
) -> list[str]:
    """Return texts of which longer ones are cut to so many tokens, special ones not counted.

    A character is never divided, and the first one stays even if it is of more tokens (the last
    one, on the left): nothing would be left.

    Args:
        exchange: of the request.
        tokenizer: of the model.
        texts: to cut.
        limit: tokens of a text, 1 or more.
        field: of the body, which has the texts.
        side: where they lose the others.

    Raises:
        HTTPError: a text takes a tokenizer too much memory.
    """
    check_lengths(texts, count_chars(texts), field)

    def cut(text: str) -> str:
        offsets = encode_one(tokenizer, text, add_special_tokens=False).offsets
        if len(offsets) <= limit:
            return text
        # The next token may be of the same character, which is left out then.
        if side == "left":
            start = max(offsets[-limit][0], offsets[-limit - 1][1])
            return text[min(start, offsets[-1][1] - 1) :]
        end = min(offsets[limit - 1][1], offsets[limit][0])
        return text[: max(end, offsets[0][0] + 1)]

    return await exchange.make_each(cut, texts)

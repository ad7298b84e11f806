"""What a tokenizer refuses: what it cannot take, and texts that are too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import tokenizers

from embedlib.errors import (
    ConfigError,
    EmbedlibError,
    EngineOutOfMemoryError,
    InputError,
    PassingBuildError,
    SequenceTooLongError,
    a_type,
    shown,
)
from embedlib.models.prompts import Prompt
from embedlib.threads.starting import NO_THREADS

MAX_ROWS_NAMED = 10
"""Maximum truncated rows that a message names; it counts the others."""
WarnTruncated = Callable[[Sequence[tuple[int, int]], int], None]
"""Takes the truncated rows with their lengths, or the first of them, and the number of all."""


def describe_truncated(truncated: Sequence[tuple[int, int]], num_truncated: int) -> str:
    """Describe what is too long: '2 texts are too long (row 3: 812 tokens, row 9: 300 ...)'.

    Args:
        truncated: row and number of tokens of all of them, or of the first ones.
        num_truncated: the number of all of them.
    """
    listed = sorted(truncated)[:MAX_ROWS_NAMED]
    rows = ", ".join(f"row {row}: {num_tokens} tokens" for row, num_tokens in listed)
    more = num_truncated - len(listed)
    verb = "text is" if num_truncated == 1 else "texts are"
    return f"{num_truncated} {verb} too long ({rows}{f' and {more} more' if more else ''})"


def too_long(
    truncated: Sequence[tuple[int, int]], max_seq_tokens: int, remedy: str
) -> SequenceTooLongError:
    """Return the error for texts that are longer than the limit; `remedy` ends the message."""
    return SequenceTooLongError(
        f"{describe_truncated(truncated, len(truncated))}, the limit is {max_seq_tokens}{remedy}",
        rows=tuple(row for row, _ in truncated),
        max_seq_tokens=max_seq_tokens,
    )


def check_text(name: str, text: object) -> None:
    """Check that the tokenizer can take a text; its own errors do not name the text.

    Raises:
        InputError: it is not a str, or not valid Unicode.
    """
    if not isinstance(text, str):
        raise InputError(f"{name} is {shown(text)}, {a_type(text)}; it must be a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} has the lone surrogate {text[error.start]!r} at character {error.start}; "
            "that is not Unicode, repair it with text.encode('utf-8', 'replace').decode()"
        ) from None


def explain(texts: Sequence[str], first_row: int, error: BaseException) -> EmbedlibError:
    """Return the error that names the text that the tokenizer refused."""
    lack = lacking(error)
    if lack is not None:
        return lack
    for row, text in enumerate(texts, first_row):
        try:
            check_text(f"text {row}", text)
        except InputError as found:
            return found
    last_row = first_row + len(texts) - 1
    reason = " ".join(str(error).split())
    return InputError(f"texts {first_row} to {last_row} failed to tokenize: {reason:.300}")


def lacking(error: BaseException) -> EmbedlibError | None:
    """Return the error of a tokenizer that lacked memory or threads; None: its texts are to blame.

    A load counts texts that are to blame as bad rows, and goes on without them.
    """
    if isinstance(error, MemoryError):
        return EngineOutOfMemoryError("the tokenizer is out of memory; pass fewer texts at once")
    if "ThreadPoolBuildError" in str(error):  # the library tries only once in a process
        return PassingBuildError(
            f"the tokenizer stopped: {NO_THREADS}, or set TOKENIZERS_PARALLELISM=false; then start "
            "the program again"
        )
    return None


def check_left(prompt: Prompt, *, is_excluded: bool) -> None:
    """Check that texts behind a prompt may be truncated on the left, which cuts it first.

    Args:
        prompt: of the texts.
        is_excluded: whether pooling leaves out the prompt's tokens, and so must find them.

    Raises:
        ConfigError: the model needs all of it.
    """
    if prompt.suffix or prompt.examples or (is_excluded and prompt.prefix):
        raise ConfigError(
            f"truncation on the left would cut the prompt {prompt.prefix!r:.60}, which this model "
            "needs; truncate on the right"
        )


def check_room(room: int, num_prompt_tokens: int, max_seq_tokens: int) -> None:
    """Check that a prompt leaves room for tokens of a text.

    Raises:
        ConfigError: it does not; all texts would have the vector of the prompt.
    """
    if room < 1:
        raise ConfigError(
            f"the prompt has {num_prompt_tokens} tokens, which leaves no room for a text: "
            f"max_seq_length is {max_seq_tokens}; pass a shorter prompt, or a higher max_seq_tokens"
        )


def check_ids(
    texts: Sequence[Sequence[int]],
    first_row: int,
    tokenizer: tokenizers.Tokenizer,
    max_seq_tokens: int,
) -> None:
    """Check the token ids of texts that somebody else tokenized.

    Raises:
        InputError: a text has no ids, or one that the tokenizer does not have.
        SequenceTooLongError: a text has more than `max_seq_tokens`.
    """
    distinct = set(chain.from_iterable(texts))
    unknown = {id_ for id_ in distinct if not _has_token(tokenizer, id_)}
    for row, ids in enumerate(texts, first_row):
        if not ids:
            raise InputError(f"text {row} has no token ids; leave it out")
        if found := unknown.intersection(ids):
            raise InputError(
                f"text {row} has the token id {min(found)}, which is out of vocabulary; send ids "
                "of the model's own tokenizer, or the text"
            )
    if long := [
        (row, len(ids)) for row, ids in enumerate(texts, first_row) if len(ids) > max_seq_tokens
    ]:
        remedy = "; token ids are not truncated, send fewer of them, or the texts"
        raise too_long(long, max_seq_tokens, remedy)


def _has_token(tokenizer: tokenizers.Tokenizer, id_: int) -> bool:
    # The library takes ids of 32 bits; a vocabulary may have gaps.
    return 0 <= id_ < 1 << 32 and tokenizer.id_to_token(id_) is not None


def no_tokens(row: int, text: str, *, is_behind_prompt: bool, is_joined: bool) -> InputError:
    """Return the error for a text that has no tokens of its own.

    Args:
        row: of the text, for the message.
        text: the text.
        is_behind_prompt: pooling leaves the tokens of a prompt out.
        is_joined: the text has tokens without the prompt.
    """
    behind = " behind the prompt" if is_behind_prompt else ""
    why, remedy = "", "leave it out"
    if is_joined:
        why = ", because the tokenizer joins the end of the prompt, which is left out, with it"
        remedy += ", or pass a prompt with another end"
    return InputError(f"text {row} has no tokens{behind}: {text!r:.60}{why}; {remedy}")

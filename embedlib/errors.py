"""Every error and warning class of embedlib.

    EmbedlibError
    ├── ConfigError (ValueError)             an option is wrong
    ├── InputError (ValueError)              a text cannot be embedded (not a str, a lone surrogate)
    │   └── SequenceTooLongError             more tokens than the limit, with on_truncate="error"
    ├── ModelError
    │   ├── ModelNotFoundError               no folder, package or hub repository has that name
    │   ├── ModelUnsupportedError            a model file has a value embedlib does not implement
    │   └── ModelWeightsError                a tensor is missing, unexpected or of the wrong shape
    ├── EngineError
    │   ├── EngineUnavailableError           the engine's library or device is missing
    │   ├── EngineUnsupportedError           this engine cannot run this model
    │   ├── EngineBuildError                 lowering or compiling failed
    │   │   └── PassingBuildError            it may go well later: no thread was left, files changed
    │   ├── CloseTimeoutError                a thread still runs after the time that close waits
    │   └── EngineRunError                   a batch failed
    │       └── EngineOutOfMemoryError       a batch did not fit, even when split
    ├── QueueFullError                       more queries are queued than `max_queued_texts`
    ├── ClosedError                          the model was closed, or loaded in another process
    ├── SourceError                          texts could not be read
    └── SinkError                            vectors could not be written

    TruncationWarning (UserWarning)          texts were truncated, with on_truncate="warn"
    PromptWarning (UserWarning)              `encode` cannot tell which of two prompts applies

A message is one line: what happened, the value, what is allowed, what to do. What messages are made
of is here, too: values and counts as they show them, and the lines of other libraries' errors.
"""

import copyreg
import re
from collections.abc import Collection
from difflib import get_close_matches

_START_CHARACTERS, _END_CHARACTERS = 1500, 500
"""What is kept of a message that quotes a value or a path of any length: its start says what
happened, its end says what to do."""
OTHER_CACHE = "name another folder with engine_cache_dir (--engine-cache-dir)"
"""What to do where the cache cannot be written."""
_PASSWORD = re.compile(r"(:/{1,2}[^/?:@\s]*):(?!\d+[/?:;,'\")\s])\S*@")
"""Of a URL, up to the last @ before a blank. A number behind the colon is a port."""
SECRET_OPTION = r"\w*(?:password|passwd|secret|token|api_?key)="
"""Of a URL, such as `sslpassword=` and `oauth_client_secret=`; in any case."""
_SECRET = re.compile(rf"(?i)([?&]{SECRET_OPTION})[^&\s'\"]*")
"""An option of a URL."""
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
"""Source: the Unicode standard, 23.1, C0 and C1 controls."""
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS if chr(code) not in "\n\t"}


class EmbedlibError(Exception):
    """Base of every error raised by embedlib."""

    def __init__(self, *args: object) -> None:
        """Keep the message, without passwords, and without the middle if it is long."""
        super().__init__(*(_told(each) if isinstance(each, str) else each for each in args))

    def __reduce__(self) -> tuple[object, ...]:
        """Return what another process makes this error of: the message and the attributes.

        The one of `Exception` calls the class with the message alone, and some need more.
        """
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ConfigError(EmbedlibError, ValueError):
    """An option is unknown or out of range."""


class InputError(EmbedlibError, ValueError):
    """A text cannot be embedded."""


class SequenceTooLongError(InputError):
    """Texts have more tokens than the limit and `on_truncate` is "error".

    Attributes:
        rows: positions of the texts in the call.
        max_seq_tokens: the limit.
    """

    def __init__(self, message: str, rows: tuple[int, ...], max_seq_tokens: int) -> None:
        super().__init__(message)
        self.rows = rows
        self.max_seq_tokens = max_seq_tokens


class ModelError(EmbedlibError):
    """A model cannot be used."""


class ModelNotFoundError(ModelError):
    """No model has that name; the message lists the places that were searched."""


class ModelUnsupportedError(ModelError):
    """A model file has a value that embedlib does not implement."""


class ModelWeightsError(ModelError):
    """The weights do not match the model's configuration."""


class EngineError(EmbedlibError):
    """An engine cannot be used or failed."""


class EngineUnavailableError(EngineError):
    """The library or the device that the engine needs is missing."""


class EngineUnsupportedError(EngineError):
    """The engine cannot run this model."""


class EngineBuildError(EngineError):
    """The engine could not be built for this model."""


class PassingBuildError(EngineBuildError):
    """The engine could not be built now: no threads were left, or the model's files changed."""


class CloseTimeoutError(EngineError):
    """A thread of a model or an engine still runs after the time that `close` waits for it."""


class EngineRunError(EngineError):
    """A batch failed on the engine."""


class EngineOutOfMemoryError(EngineRunError):
    """A batch did not fit into memory. The batch manager splits such a batch and retries."""


class QueueFullError(EmbedlibError):
    """More queries are queued than `max_queued_texts`."""


class ClosedError(EmbedlibError):
    """The model was closed, or was loaded in another process."""


class SourceError(EmbedlibError):
    """Texts could not be read."""


class SinkError(EmbedlibError):
    """Vectors could not be written."""


class TruncationWarning(UserWarning):
    """Texts were longer than the limit and were truncated; the message names their rows."""


class PromptWarning(UserWarning):
    """Queries and documents need different prompts, and the call of `encode` selects none."""


def shown(value: object, width: int = 60) -> str:
    """Return a value as messages show it: its repr on one line, cut to `width` characters.

    The repr of a table or tensor of another library has many lines, and may raise.
    """
    try:
        text = repr(value)
    except Exception:
        return a_type(value)
    lines = text.splitlines()
    return (text if len(lines) < 2 else " ".join(text.split()))[:width]


def shortened(message: str) -> str:
    """Return a message of a length that can be read: of a long one its start and its end."""
    if len(message) <= _START_CHARACTERS + _END_CHARACTERS:
        return message
    return f"{message[:_START_CHARACTERS]} [...] {message[-_END_CHARACTERS:]}"


def without_passwords(message: str) -> str:
    """Return a message with `***` in the place of the passwords of URLs in it.

    Whoever makes a message leaves them out; this is for a URL in a place where none is meant to be,
    such as that of a file. A message that is far too long is shortened first: to look through it
    may take the square of its length.
    """
    if len(message) > 2 * (_START_CHARACTERS + _END_CHARACTERS):
        message = shortened(message)
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", message))


def _told(message: str) -> str:
    return shortened(without_passwords(message))


def visible(text: str) -> str:
    """Return a text with escapes for control characters, which a terminal would obey."""
    return text.translate(_ESCAPES)


def visible_line(text: str) -> str:
    """Return a text on one line: with escapes for control characters, line breaks among them."""
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, "1 row" or "1,024 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint for a name that is none of these: the nearest one, or else all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.65)  # below, names only share letters
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def a_type(value: object) -> str:
    """Return the name of a value's type with its article, "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or its class name if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def typed_line(error: BaseException) -> str:
    """Return the class name and the first line of another library's message."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"

"""JSON bodies to typed requests, with the field that is wrong in the message."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from embedlib.serve.errors import HTTPError
from embedlib.serve.options import ServeOptions

T = TypeVar("T")

_PLACE = re.compile(r"`\$\.?([^`]*)`$")
_STEP = re.compile(r"\w+|\[")
_HALF_OF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")


class TextObject(msgspec.Struct):
    """A text as clients spell it that also send images: Jina's, Cohere's."""

    text: str | None = None


Texts = str | TextObject | list[str | TextObject]
Input = str | TextObject | list[str | TextObject | int | list[int]]
"""A text, texts, the token ids of a text, or those of several; see `inputs_of`."""


def check_encoding(headers: Mapping[str, str]) -> None:
    """Check that a body is sent as it is.

    Raises:
        HTTPError: it is compressed. A small one could become any number of bytes here.
    """
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        raise HTTPError(
            415,
            f"Content-Encoding = {encoding!r:.40}; send the body uncompressed, without this header",
            "encoded",
        )


def decode(body: bytes, kind: type[T]) -> T:
    """Return a JSON body as a value of this type; unknown fields are ignored.

    Raises:
        HTTPError: it is not JSON, or a field has another type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind) from None
    except RecursionError:
        raise HTTPError(400, "the body is nested too deep; send the fields as documented") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        # As a .NET program writes UTF-8 by its defaults; of several marks each would cost a copy.
        if body.startswith(BOM_UTF8) and not body.startswith(BOM_UTF8 * 2):
            return decode(body[len(BOM_UTF8) :], kind)
        what = str(error) if body.strip() else "the body is empty"
        remedy = "send a JSON object"
        # Before msgspec 0.23 a UnicodeDecodeError, then a DecodeError that says so.
        if isinstance(error, UnicodeDecodeError) or "UTF-8" in what or b"\0" in body[:4]:
            what, remedy = "its text is not UTF-8", "encode the body in UTF-8"
        # Near the end of a body the decoder says of half a pair that the data was truncated.
        if "surrogate" in what or ("truncated" in what and _HALF_OF_A_PAIR.search(body)):
            what, remedy = "a text has half of a surrogate pair", "send whole characters"
        raise HTTPError(400, f"the body is not JSON: {what:.200}; {remedy}") from None


def _invalid(message: str, kind: Any) -> HTTPError:
    """Return the error for a field of another type than its declaration in a body of this type."""
    found = _PLACE.search(message)
    place = found.group(1) if found else ""
    if "missing required field" in message:  # the place is its object's
        name = message.split("`")[1]
        place = f"{place}.{name}".lstrip(".")
        return HTTPError.missing_field(place)
    if "unknown field" in message or message.startswith("Expected `null`,"):
        name = place or message.split("`")[1]
        here = getattr(kind, "foreign", {}).get(name)
        remedy = "GET /openapi.json has them" if here is None else f"send {here}"
        return HTTPError(422, f"{name:.80} is no field of this route; {remedy}", param=name[:80])
    what = _PLACE.sub("", message).removesuffix(" - at ")
    what = what[:1].lower() + what[1:]
    if what.startswith("invalid enum value"):
        known = _choices(_type_info(kind), _STEP.findall(place))
        what = what[:80]  # it ends with the value
        what += f"; it must be {' or '.join(map(str, known))}" if known else ""
    return HTTPError(422, f"{place or 'the body'}: {what}", param=place or None)


_type_info = cache(inspect.type_info)


def _choices(kind: inspect.Type, steps: list[str]) -> list[Any]:
    """Return the values that a place takes, by the names and `[` that lead there from its type."""
    if isinstance(kind, inspect.UnionType):
        return [value for each in kind.types for value in _choices(each, steps)]
    if isinstance(kind, inspect.LiteralType) and not steps:
        return list(kind.values)
    if isinstance(kind, inspect.StructType) and steps:
        fields = [field.type for field in kind.fields if field.encode_name == steps[0]]
        return [value for each in fields for value in _choices(each, steps[1:])]
    if isinstance(kind, inspect.ListType) and steps[:1] == ["["]:
        return _choices(kind.item_type, steps[2:])
    return []


def inputs_of(value: Input, name: str, options: ServeOptions) -> list[str] | list[list[int]]:
    """Return the texts of an input, or the token ids of each where the server takes them.

    Args:
        value: as decoded.
        name: of the field, for messages.
        options: of the server.

    Raises:
        HTTPError: what `texts_of` raises, but of token ids only where the server takes none.
    """
    if not options.token_ids or not isinstance(value, list) or not value:
        return texts_of(value, name, options)
    if not {str, TextObject}.isdisjoint(map(type, value)):
        return texts_of(value, name, options)
    groups = ids_of(value, name)
    check_count(groups, name, options.max_texts)
    return groups


def texts_of(
    value: str | TextObject | Sequence[str | TextObject | int | list[int]],
    name: str,
    options: ServeOptions,
) -> list[str]:
    """Return the texts of an input.

    Args:
        value: as decoded.
        name: of the field, for messages.
        options: of the server.

    Raises:
        HTTPError: it has no text, or too many, or token ids, which nobody can check: clients that
            count with another tokenizer send ids that mean other words here.
    """
    given = [value] if isinstance(value, (str, TextObject)) else value
    check_count(given, name, options.max_texts)
    if set(map(type, given)) == {str}:
        return given  # type: ignore[return-value]
    texts = [each.text if isinstance(each, TextObject) else each for each in given]
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            what = (
                "has no text; send a string or an object with text, there are no images here"
                if text is None
                else "is token ids; send texts (for langchain-openai: "
                "OpenAIEmbeddings(check_embedding_ctx_length=False)), or start the server with "
                "--token-ids if they are of the model's own tokenizer"
            )
            raise HTTPError(400, f"{name}[{place}] {what}", param=name)
    return texts  # type: ignore[return-value]


def ids_of(values: Sequence[object], name: str) -> list[list[int]]:
    """Return the token ids of texts, of one list or of several.

    Raises:
        HTTPError: ids and lists are mixed.
    """
    if all(isinstance(item, int) for item in values):
        return [list(values)]  # type: ignore[arg-type]
    if not all(isinstance(item, list) for item in values):
        raise HTTPError(422, f"{name}: give a list of token ids, or of lists of them", param=name)
    return list(values)  # type: ignore[arg-type]


def check_count(values: Sequence[Any], name: str, max_texts: int) -> None:
    """Check that a request has some texts, and not too many.

    Raises:
        HTTPError: it has none, or more than `max_texts`.
    """
    if not values:
        raise HTTPError(400, f"{name} is empty; send at least one text", "empty", param=name)
    if len(values) > max_texts:
        raise HTTPError(
            413,
            f"{name} has {len(values):,} texts, the limit is {max_texts:,}; send them in several "
            "requests, or as a batch file",
            "too_large",
            param=name,
        )

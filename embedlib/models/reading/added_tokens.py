"""The special tokens of a model folder, as transformers adds them to a tokenizer.

They stand in tokenizer_config.json, in older folders in special_tokens_map.json, added_tokens.json
and tokenizer.json.

Source: `PreTrainedTokenizerBase._from_pretrained` and `TokenizersBackend.__init__` of transformers
5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from embedlib.checks import is_unicode
from embedlib.models.reading.json_files import JsonObject

STANDARD_KEYS: Final = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""In the order in which transformers adds them."""

EXTRA: Final = "extra_special_tokens"
OLD_EXTRA: Final = "additional_special_tokens"
"""What transformers 4 calls `EXTRA`."""

FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")

Token = str | AddedToken
"""A str has the flags of a special token."""

Wrap = Callable[[str, str], Token]
"""Takes a key and a str, and returns the token that the class makes of it."""


@dataclass(frozen=True)
class AddedTokens:
    """The tokens that are added to a tokenizer's vocabulary, or get other flags."""

    listed: Mapping[int, AddedToken]
    """By id, though the id only decides the order."""
    named: Mapping[str, Token]
    """By key; the standard ones first."""
    extra: list[Token]

    def content(self, key: str) -> str | None:
        """Return the text of the token under a key."""
        return str(self.named[key]) if key in self.named else None

    def add_to(self, tokenizer: Tokenizer) -> None:
        """Add the tokens to a tokenizer; those that it has get new flags."""
        tokens: list[Token] = [self.listed[place] for place in sorted(self.listed)]
        present = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        present.update(str(token) for token in tokens)
        for token in (*self.named.values(), *self.extra):
            if str(token) not in present:
                tokens.append(token)
        names = {str(token) for token in self.named.values()}
        tokenizer.add_tokens([_special(token, names) for token in tokens])

    def add_anew(self, tokenizer: Tokenizer) -> None:
        """Add the named and extra tokens again, all with the flags of a special token."""
        names = dict.fromkeys(str(token) for token in (*self.named.values(), *self.extra))
        tokenizer.add_tokens([AddedToken(name, special=True) for name in names])


def read_added_tokens(
    config: JsonObject,
    directory: Path,
    folder: Path,
    stored: Mapping[int, AddedToken],
    *,
    defaults: Mapping[str, str],
    wrap: Wrap,
) -> AddedTokens:
    """Return the special tokens of a folder.

    Args:
        config: tokenizer_config.json.
        directory: holds the tokenizer's files.
        folder: the model folder; messages name files relative to it.
        stored: the added tokens of tokenizer.json.
        defaults: special tokens to use if no file names them, by key.
        wrap: makes a token of a str.

    Raises:
        ModelUnsupportedError: a file holds something that is not a token.
    """
    values = {  # of its own keys transformers takes no other objects
        key: value
        for key, value in config.values.items()
        if not (_is_own(key) and isinstance(value, dict) and "__type" not in value)
    }
    sources = dict.fromkeys(values, config)
    more, extra = _several(config, EXTRA if EXTRA in values else OLD_EXTRA)
    if "added_tokens_decoder" in values:
        listing = config.child("added_tokens_decoder")
        listed = dict(_listed(listing, key) for key in listing.values)
    else:
        overriding = JsonObject.load(directory / "special_tokens_map.json", folder)
        for key, value in overriding.values.items():
            if not (_is_own(key) and isinstance(values.get(key), str)):
                values[key], sources[key] = value, overriding
        named_there, listed_there = _several(overriding, EXTRA)
        more, extra = more | named_there, [] if named_there else [*extra, *listed_there]
        listed = _added_tokens(directory, folder, values, extra) | dict(stored)
        if EXTRA not in values and OLD_EXTRA not in config.values:
            more, extra = _several(overriding, OLD_EXTRA)
    named: dict[str, Token] = {}
    for key in _token_keys(values, defaults):
        token = read_token(sources[key], key) if key in values else defaults[key]
        if token is not None:
            named[key] = wrap(key, token) if isinstance(token, str) else token
    return AddedTokens(listed, named | more, extra)


def _several(file: JsonObject, key: str) -> tuple[dict[str, Token], list[Token]]:
    """Return the tokens under a key of several: those with names, and the others."""
    found = file.values.get(key) or []
    if isinstance(found, dict):
        children = file.child(key)
        return {name: _required(children, name) for name in found}, []
    if not isinstance(found, list):
        raise file.refuse(key, "a list of tokens")
    items = JsonObject(f"{file.name}: {key}", {str(at): each for at, each in enumerate(found)})
    return {}, [_required(items, at) for at in items.values]


def read_token(config: JsonObject, key: str) -> Token | None:
    """Return the token under a key: a string, or an object with flags; None: missing or null.

    Raises:
        ModelUnsupportedError: it is something else.
    """
    value = config.values.get(key)
    if value is None or is_unicode(value):
        return value
    is_token = _is_token(value) and is_unicode(value["content"])
    flags = {flag: value[flag] for flag in FLAGS if flag in value} if is_token else {}
    if not is_token or not all(isinstance(flag, bool) for flag in flags.values()):
        raise config.refuse(key, "a string, or an object with content and flags, in Unicode")
    if "special_tokens_map.json" in config.name:  # also of a list in it
        flags["special"] = True
    return AddedToken(value["content"], **flags)


def _is_token(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def _is_own(key: str) -> bool:
    return key.endswith("_token") and key not in STANDARD_KEYS


def _token_keys(values: Mapping[str, Any], defaults: Mapping[str, str]) -> list[str]:
    """Return the keys of named tokens: the standard ones, then the model's own."""
    own = [
        key
        for key, value in values.items()
        if _is_own(key) and (isinstance(value, str) or _is_token(value))
    ]
    own.sort(key=lambda key: isinstance(values[key], str))
    return [key for key in STANDARD_KEYS if key in values or key in defaults] + own


def _required(config: JsonObject, key: str) -> Token:
    token = read_token(config, key)
    if token is None:
        raise config.refuse(key, "a token")
    return token


def _listed(listing: JsonObject, key: str) -> tuple[int, AddedToken]:
    """Return an entry of `added_tokens_decoder`."""
    if not key.isdecimal():
        raise listing.refuse(key, "ids as keys")
    token = read_token(listing, key)
    if not isinstance(token, AddedToken):
        raise listing.refuse(key, "an object with content and flags")
    return int(key), token


def _added_tokens(
    directory: Path, folder: Path, values: Mapping[str, Any], extra: list[Token]
) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json, which older folders have."""
    ids = JsonObject.load(directory / "added_tokens.json", folder)
    tokens: list[Any] = [*map(values.get, STANDARD_KEYS), *extra]
    named = {token["content"] if _is_token(token) else str(token) for token in tokens}
    return {
        ids.integer(content, minimum=0): AddedToken(
            content,
            lstrip=False,
            rstrip=False,
            normalized=content not in named,
            special=content in named,
        )
        for content in ids.values
    }


def _special(token: Token, names: set[str]) -> AddedToken:
    """Return the token to add; one that a key names is special."""
    if isinstance(token, str):
        return AddedToken(token, special=True)
    if not token.special and token.content in names:
        token.special = True
    return token

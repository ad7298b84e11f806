"""Texts to tokens and back, as text-embeddings-inference and vLLM spell it.

Source: text-embeddings-inference 1.9, router/src/http/types.rs; vLLM, `entrypoints/serve/tokenize`.
"""

from __future__ import annotations

from typing import Any

from embedlib.batching.tokenizing.token_ids import encode_one
from embedlib.embedder import Embedder
from embedlib.serve.dialects.dialect import OPENAI, TEI, Route
from embedlib.serve.errors import HTTPError
from embedlib.serve.models.catalog import ALL_TASKS
from embedlib.serve.models.estimate import MAX_TEXT_CHARACTERS, count_chars
from embedlib.serve.models.sessions import AnyModel
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Common, Exchange
from embedlib.serve.wire import ids_of, texts_of


class TokenizeBody(Common, kw_only=True):
    """The body of `POST /tokenize`; `prompt` is vLLM's."""

    inputs: str | list[str] | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    """vLLM's: with `prompt`, the tokens as the vocabulary has them, too."""
    prompt_name: str | None = None


class DecodeBody(Common, kw_only=True):
    """The body of `POST /decode`."""

    ids: list[int | list[int]]
    skip_special_tokens: bool | None = None


class DetokenizeBody(Common, kw_only=True):
    """The body of `POST /detokenize`."""

    tokens: list[int]


async def tokenize(exchange: Exchange) -> Response:
    """Answer `POST /tokenize`, of text-embeddings-inference or, with `prompt`, of vLLM."""
    body = await exchange.read(TokenizeBody)
    session = exchange.find(body.model, *ALL_TASKS).open()
    given = body.prompt if body.inputs is None else body.inputs
    if given is None:
        raise HTTPError.missing_field("inputs")
    if None not in (body.inputs, body.prompt):
        message = "inputs and prompt are both there; send one of them"
        raise HTTPError(400, message, param="prompt")
    name = "prompt" if body.inputs is None else "inputs"
    texts = texts_of(given, name, exchange.shared.options)
    if (num_chars := count_chars(texts)) > MAX_TEXT_CHARACTERS:
        raise HTTPError(
            413,
            f"{name} has {num_chars:,} characters; the tokens of {MAX_TEXT_CHARACTERS:,} are told "
            "at a time, send fewer or shorter texts",
            "too_large",
            param=name,
        )
    front = _prompt_of(session, body.prompt_name)
    adds = body.add_special_tokens is not False
    tokens = await exchange.make_each(lambda text: _tokens(session, front + text, adds), texts)
    if body.inputs is None:
        ids = [token["id"] for token in tokens[0]]
        limit = session.max_seq_length
        content: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": limit}
        if body.return_token_strs:
            name_of = session.tokenizer.id_to_token
            content["token_strs"] = await exchange.make_each(name_of, ids)
        return await exchange.answer(content, len(ids))
    return await exchange.answer(tokens, sum(map(len, tokens)))


def _prompt_of(session: AnyModel, name: str | None) -> str:
    """Return the prompt that is put in front of texts.

    Raises:
        HTTPError: there is none of this name.
    """
    if name is None or not isinstance(session, Embedder):
        return ""
    prompts: dict[str, str] = {"query": "", "document": ""}  # every embedder has these
    prompts |= session.prompts
    if name not in prompts:
        names = ", ".join(sorted(prompts))
        raise HTTPError.wrong_value("prompt_name", name, f"the prompts are: {names}")
    return prompts[name]


def _tokens(session: AnyModel, text: str, adds_special: bool) -> list[dict[str, Any]]:
    found = encode_one(session.tokenizer, text, add_special_tokens=adds_special)
    return [
        {
            "id": id,
            "text": token if is_special else text[start:end],
            "special": bool(is_special),
            "start": None if is_special else start,
            "stop": None if is_special else end,
        }
        for id, token, is_special, (start, end) in zip(
            found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True
        )
    ]


async def decode_ids(exchange: Exchange) -> Response:
    """Answer `POST /decode`."""
    body = await exchange.read(DecodeBody)
    groups = ids_of(body.ids, "ids")
    skips = body.skip_special_tokens is not False
    texts = await _texts(exchange, body.model, groups, "ids", skips_special=skips)
    return await exchange.answer(texts, len(groups))


async def detokenize(exchange: Exchange) -> Response:
    """Answer vLLM's `POST /detokenize`."""
    body = await exchange.read(DetokenizeBody)
    texts = await _texts(exchange, body.model, [body.tokens], "tokens", skips_special=False)
    return await exchange.answer({"prompt": texts[0]})


async def _texts(
    exchange: Exchange,
    model: str | None,
    groups: list[list[int]],
    field: str,
    *,
    skips_special: bool,
) -> list[str]:
    """Return the text of each list of token ids, which a field of the body has.

    Raises:
        HTTPError: there is no such model, or its tokenizer has no such token.
    """
    tokenizer = exchange.find(model, *ALL_TASKS).open().tokenizer

    size = tokenizer.get_vocab_size(with_added_tokens=True)

    def decode(ids: list[int]) -> str:
        if wrong := [id for id in set(ids) if not 0 <= id < size]:
            message = f"{field} has {wrong[0]}; the ids are 0 to {size - 1}"
            raise HTTPError(422, message, param=field)
        text: str = tokenizer.decode(ids, skip_special_tokens=skips_special)
        return text

    return await exchange.make_each(decode, groups)


ROUTES = (
    Route("POST", "/tokenize", tokenize, TEI, "The tokens of texts.", TokenizeBody),
    Route("POST", "/decode", decode_ids, TEI, "The texts of token ids.", DecodeBody),
    Route("POST", "/detokenize", detokenize, OPENAI, "The text of token ids.", DetokenizeBody),
)

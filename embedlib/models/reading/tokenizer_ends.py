"""Begin and end tokens that flags of tokenizer_config.json turn on, as in transformers 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokenizers import Tokenizer, processors

from embedlib.models.reading.added_tokens import read_token
from embedlib.models.reading.config_file import family_of
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.tokenizer_classes import CLASSES
from embedlib.models.reading.tokenizer_json import PROBE

END_FLAGS: Final = (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token"))
"""Keys of tokenizer_config.json: the flags of a begin and an end token, and the tokens."""

FLAGGED_CLASSES: Final = ("LlamaTokenizer", "GemmaTokenizer")
"""Tokenizer classes that add a begin and an end token by these flags."""


def apply_ends(
    tokenizer: Tokenizer,
    config: JsonObject,
    model_config: JsonObject,
    num_tokens: int,
    file: str,
) -> None:
    """Add begin and end tokens to a text if tokenizer_config.json has flags for them.

    Args:
        tokenizer: gets another post-processor where they say something else than its own.
        config: tokenizer_config.json.
        model_config: config.json.
        num_tokens: tokens of tokenizer.json, without those that were added to it.
        file: its name, for messages.

    Raises:
        ModelUnsupportedError: the flags and tokenizer.json contradict each other.
    """
    name = (
        config.text("tokenizer_class")
        or model_config.text("tokenizer_class")
        or family_of(model_config).tokenizer_class
        or ""
    ).removesuffix("Fast")
    if family_of(model_config).ends_by_flags:
        if "add_eos_token" not in config:
            raise config.refuse("add_eos_token", "true or false, which the folder's class reads")
        _set_ends(tokenizer, config, CLASSES["Qwen2Tokenizer"].defaults, num_tokens, file)
    elif name in FLAGGED_CLASSES and any(flag in config for flag, _ in END_FLAGS):
        _check_unflagged(tokenizer, config, file)
        _set_ends(tokenizer, config, CLASSES[name].defaults, num_tokens, file)


def _check_unflagged(tokenizer: Tokenizer, config: JsonObject, file: str) -> None:
    """Refuse a token that tokenizer.json adds and its flag turns off.

    transformers 4 left it out and 5 adds it, and nothing tells with which the model was trained. A
    flag that is turned on is another matter: see `_set_ends`.

    Source: `update_post_processor` of the two classes' fast tokenizers in transformers 4;
    `PreTrainedTokenizerBase._from_pretrained` of 5.5, which drops the flags.
    """
    for (flag, key), tokens in zip(END_FLAGS, _ends_of_file(tokenizer), strict=True):
        if tokens and not config.boolean(flag, key == "bos_token"):
            shown = quote(" ".join(str(tokenizer.id_to_token(id_)) for id_ in tokens))
            raise config.refuse(
                flag,
                f"true, since the post_processor of {file} adds {shown}; transformers 4 left it "
                "out and 5 adds it: set the flag, or take the token out there, as the model was "
                "trained",
            )


def _ends_of_file(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that the post-processor of a tokenizer adds before and behind a text."""
    text = tokenizer.encode(PROBE, add_special_tokens=False)
    present = tokenizer.post_processor
    ids = text.ids if present is None else present.process(text).ids
    begin = next((at for at, id_ in enumerate(ids) if id_ == text.ids[0]), 0)
    return ids[:begin], ids[begin + len(text.ids) :]


def _set_ends(
    tokenizer: Tokenizer,
    config: JsonObject,
    defaults: Mapping[str, str],
    num_tokens: int,
    file: str,
) -> None:
    """Add the begin and end tokens that the flags of tokenizer_config.json turn on.

    transformers 4 did so; 5 uses only tokenizer.json. If the two files disagree, the model was
    trained with the flags: e5-mistral-7b-instruct sets add_eos_token, its tokenizer.json adds no
    end token, and the embedding is the vector of that token. If both add a token and not the same
    one, none of them can be trusted.

    Source: `update_post_processor` of the two classes' fast tokenizers in transformers 4, and
    https://github.com/embeddings-benchmark/mteb/pull/5237.
    """
    ends: list[list[tuple[str, int]]] = []
    for flag, key in END_FLAGS:
        if not config.boolean(flag, key == "bos_token" and key in defaults):
            ends.append([])
            continue
        content = str(read_token(config, key) or defaults.get(key, ""))
        token_id = tokenizer.token_to_id(content)
        if token_id is None or token_id >= num_tokens:  # or only just added
            raise config.refuse(key, "a token of tokenizer.json")
        ends.append([(content, token_id)])
    for (_, key), flagged_end, file_end in zip(
        END_FLAGS, ends, _ends_of_file(tokenizer), strict=True
    ):
        if flagged_end and file_end and [id_ for _, id_ in flagged_end] != file_end:
            tokens = " ".join(str(tokenizer.id_to_token(id_)) for id_ in file_end)
            raise config.refuse(key, f"{quote(tokens)}, as in the post_processor of {file}")
    first, last = ([token for token, _ in end] for end in ends)
    second = [f"{token}:1" for token in (*first, "$B", *last)]
    flagged = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *second],
        special_tokens=list(dict([*ends[0], *ends[1]]).items()),
    )
    present = tokenizer.post_processor
    text = tokenizer.encode(PROBE, add_special_tokens=False)
    if present is None or present.process(text).ids != flagged.process(text).ids:
        tokenizer.post_processor = flagged

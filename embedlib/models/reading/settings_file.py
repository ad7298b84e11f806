"""Reads the settings file of sentence-transformers' transformer module.

Source: the keys that sentence-transformers 6.2 reads and writes, and older key names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.model_file import has_file, read_file

SETTINGS_NAMES: Final = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""File names of the settings in all releases; the first file that exists is read."""

_HOW_COMPUTED: Final = frozenset({"attn_implementation", "dtype", "torch_dtype"})
"""Arguments that say how transformers computes a model, not what: vectors differ by rounding."""

SettingsKeys = Mapping[str, tuple[object, ...] | None]
"""Keys of the settings. A tuple holds the only values implemented; None: any value."""


def _modality(output: str, *, messages: str | None = None) -> dict[str, Any]:
    """Return the `modality_config` of a model for text only; with chat messages, in this form."""
    text = {"method": "forward", "method_output_name": output}
    return {"text": text} | ({"message": text | {"format": messages}} if messages else {})


_TEXT_ALONE: Final = _modality("last_hidden_state")
_ALL_MODALITIES: Final = {
    **dict.fromkeys(("text", "image", "audio", "video"), _TEXT_ALONE["text"]),
    "message": _TEXT_ALONE["text"] | {"format": "structured"},
}
"""Of EmbeddingGemma 2, of which texts alone are computed."""

# That the folder's own code be run asks for nothing: config.json names it. Nor does it that the
# pooler be left out, as in snowflake-arctic-embed: no module of an embedding model reads it.
_OWN_CODE: Final = {"trust_remote_code": True}
_NO_POOLER: Final = {"add_pooling_layer": False}
_ARGS: Final[tuple[object, ...]] = ({}, None, _OWN_CODE)
_WITHOUT_POOLER: Final = (*_ARGS, _NO_POOLER, _OWN_CODE | _NO_POOLER)

EMBEDDING_KEYS: Final[SettingsKeys] = {
    "max_seq_length": None,
    "do_lower_case": None,
    # since sentence-transformers 6
    "transformer_task": ("feature-extraction",),
    "modality_config": (_TEXT_ALONE, _ALL_MODALITIES),
    "module_output_name": ("token_embeddings",),
    "unpad_inputs": None,
    "processing_kwargs": ({}, None),
    "query_length": (None,),
    "document_length": (None,),
    "query_expansion": (None,),
    # arguments for transformers, which could change any vector
    "model_args": _WITHOUT_POOLER,
    "tokenizer_args": _ARGS,
    "config_args": _ARGS,
    "model_kwargs": _WITHOUT_POOLER,
    "processor_kwargs": _ARGS,
    "config_kwargs": _ARGS,
    "tokenizer_name_or_path": (None,),
}
"""Of an embedding model."""

LATE_KEYS: Final[SettingsKeys] = {
    **EMBEDDING_KEYS,
    **dict.fromkeys(("query_length", "document_length", "query_expansion")),
}
"""Of a late-interaction model; `late_interaction` checks the values of its own keys."""

MESSAGES: Final = (None, "flat", "structured")
"""Forms of chat messages. A known template takes the place of that of the folder."""

SCORING_KEYS: Final[SettingsKeys] = {
    **EMBEDDING_KEYS,
    "transformer_task": None,
    "modality_config": tuple(_modality("logits", messages=form) for form in MESSAGES),
    "module_output_name": ("scores", "causal_logits"),
    "processing_kwargs": None,
    **dict.fromkeys(("model_args", "model_kwargs"), _ARGS),
}
"""Of a reranker or classifier."""

MASKED_KEYS: Final[SettingsKeys] = {
    **EMBEDDING_KEYS,
    "transformer_task": ("fill-mask",),
    "modality_config": (_modality("logits"),),
    **dict.fromkeys(("model_args", "model_kwargs"), _ARGS),
}
"""Of a sparse model."""


CHAT_TEMPLATE_NAME: Final = "chat_template.jinja"
"""The file of the chat template in transformers 5; 4 wrote it into tokenizer_config.json."""

PLAIN_TEMPLATES: Final = frozenset(
    {"4b852efc0b9960283e735363331e6f325b33bc74bdbaa076f595bc4e9b94d85e"}
)
"""SHA-256 of templates that write the prompt, which comes as the system's message, and behind it
the text, and nothing else: that of EmbeddingGemma 2, without space at its ends."""

CHAT_TEMPLATE: Final = (
    "text alone; sentence-transformers 5.4 and later write every text of this folder into its chat "
    "template, a program that embedlib does not run; if the model was trained on plain texts, "
    'delete "message" there'
)
"""What an embedding model with the modality `message` is told.

Source: `Transformer.preprocess` of sentence-transformers 6.2, base/modules/transformer.py: "always
convert to the message format if it's supported". A folder without `modality_config` has text alone.
"""


def read_settings(transformer_dir: Path, folder: Path, keys: SettingsKeys) -> JsonObject:
    """Return the checked settings of the transformer module; empty if there is no settings file.

    Args:
        transformer_dir: the directory of the settings file.
        folder: the model folder.
        keys: those of the kind of model.

    Raises:
        ModelUnsupportedError: if a key is unknown or its value is not implemented.
    """
    for name in SETTINGS_NAMES:
        settings = JsonObject.load(transformer_dir / name, folder)
        if settings.values:
            settings.check_keys(keys)
            has_messages = keys is not SCORING_KEYS and (
                "message" in settings.child("modality_config").values
            )
            if has_messages and not _is_plain(transformer_dir / CHAT_TEMPLATE_NAME, folder):
                raise settings.refuse("modality_config", CHAT_TEMPLATE)
            checked = _without_how(settings)
            for key, accepted in keys.items():
                if accepted is not None:
                    checked.check_fixed(key, accepted)
            return settings
    return JsonObject(SETTINGS_NAMES[0], {})


def _without_how(settings: JsonObject) -> JsonObject:
    """Return the settings without arguments that say only how a model is computed."""
    values = dict(settings.values)
    for key in ("model_args", "model_kwargs"):
        if isinstance(found := values.get(key), dict):
            values[key] = {name: found[name] for name in found if name not in _HOW_COMPUTED}
    return replace(settings, values=values)


def _is_plain(template: Path, folder: Path) -> bool:
    """Return whether a chat template is there, and writes texts as they are."""
    if not has_file(template, folder):
        return False
    return hashlib.sha256(read_file(template, folder).strip()).hexdigest() in PLAIN_TEMPLATES

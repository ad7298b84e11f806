"""Reads the settings file of sentence-transformers' transformer module.

Source: the keys that sentence-transformers 6.2 reads and writes, and older key names.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
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

SettingsKeys = Mapping[str, tuple[object, ...] | None]
"""Keys of the settings. A tuple holds the only values implemented; None: any value."""


def _modality(output: str, *, has_messages: bool = False) -> dict[str, Any]:
    """Return the `modality_config` of a model for text only, with or without chat messages."""
    text = {"method": "forward", "method_output_name": output}
    return {"text": text} | ({"message": text | {"format": "flat"}} if has_messages else {})


# That the folder's own code be run asks for nothing: config.json names it. Nor does it that the
# pooler be left out, as in snowflake-arctic-embed: no module of an embedding model reads it.
_OWN_CODE: Final = {"trust_remote_code": True}
_NO_POOLER: Final = {"add_pooling_layer": False}
_MODEL_ARGS: Final[tuple[object, ...]] = ({}, None, _OWN_CODE)
_WITHOUT_POOLER: Final = (*_MODEL_ARGS, _NO_POOLER, _OWN_CODE | _NO_POOLER)

_ALL_MODALITIES: Final = {
    **dict.fromkeys(("text", "image", "audio", "video"), _modality("last_hidden_state")["text"]),
    "message": _modality("last_hidden_state")["text"] | {"format": "structured"},
}
"""Of EmbeddingGemma 2, whose texts come through a chat template."""

EMBEDDING_KEYS: Final[SettingsKeys] = {
    "max_seq_length": None,
    "do_lower_case": None,
    # since sentence-transformers 6
    "transformer_task": ("feature-extraction",),
    "modality_config": (_modality("last_hidden_state"), _ALL_MODALITIES),
    "module_output_name": ("token_embeddings",),
    "unpad_inputs": None,
    "processing_kwargs": ({}, None),
    "query_length": (None,),
    "document_length": (None,),
    "query_expansion": (None,),
    # arguments for transformers, which could change any vector
    "model_args": _WITHOUT_POOLER,
    "tokenizer_args": ({}, None),
    "config_args": ({}, None),
    "model_kwargs": _WITHOUT_POOLER,
    "processor_kwargs": ({}, None),
    "config_kwargs": ({}, None),
    "tokenizer_name_or_path": (None,),
}
"""Of an embedding model."""

LATE_KEYS: Final[SettingsKeys] = {
    **EMBEDDING_KEYS,
    **dict.fromkeys(("query_length", "document_length", "query_expansion")),
}
"""Of a late-interaction model; `late_interaction` checks the values of its own keys."""

SCORING_KEYS: Final[SettingsKeys] = {
    **EMBEDDING_KEYS,
    "transformer_task": None,
    "modality_config": (_modality("logits"), _modality("logits", has_messages=True)),
    "module_output_name": ("scores", "causal_logits"),
    # The header of the answer at the end of a chat template, in whose place a known one stands.
    "processing_kwargs": ({}, None, {"chat_template": {"add_generation_prompt": True}}),
    **dict.fromkeys(("model_args", "model_kwargs"), _MODEL_ARGS),
}
"""Of a reranker or classifier."""

MASKED_KEYS: Final[SettingsKeys] = {
    **EMBEDDING_KEYS,
    "transformer_task": ("fill-mask",),
    "modality_config": (_modality("logits"),),
    **dict.fromkeys(("model_args", "model_kwargs"), _MODEL_ARGS),
}
"""Of a sparse model."""


CHAT_TEMPLATE: Final = (
    "text alone; sentence-transformers 5.4 and later write every text of this folder into its chat "
    "template, a program that embedlib does not run; if the model was trained on plain texts, "
    'delete "message" there'
)
"""What an embedding model with the modality `message` is told.

Source: `Transformer.preprocess` of sentence-transformers 6.2, base/modules/transformer.py: "always
convert to the message format if it's supported". A folder without `modality_config` has text alone.
"""


CHAT_TEMPLATE_NAME: Final = "chat_template.jinja"
"""The file of the chat template in transformers 5; 4 wrote it into tokenizer_config.json."""

PLAIN_TEMPLATES: Final = frozenset(
    {"4b852efc0b9960283e735363331e6f325b33bc74bdbaa076f595bc4e9b94d85e"}
)
"""SHA-256 of chat templates that write texts and prompts as they are: that of EmbeddingGemma 2.

Its processor adds the special tokens, as a tokenizer alone would not.
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
            if keys is not SCORING_KEYS and _is_rewritten(settings, transformer_dir, folder):
                raise settings.refuse("modality_config", CHAT_TEMPLATE)
            for key, accepted in keys.items():
                if accepted is not None:
                    settings.check_fixed(key, accepted)
            return settings
    return JsonObject(SETTINGS_NAMES[0], {})


def _is_rewritten(settings: JsonObject, transformer_dir: Path, folder: Path) -> bool:
    """Return whether texts come through a chat template that may change them."""
    if "message" not in settings.child("modality_config").values:
        return False
    path = transformer_dir / CHAT_TEMPLATE_NAME
    known = has_file(path, folder) and sha256(read_file(path, folder)).hexdigest()
    return known not in PLAIN_TEMPLATES

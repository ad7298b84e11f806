"""The files of a drawn folder as sentence-transformers 6 saves them; drawn are those of 5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from embedlib.testing.models.variant import (
    ST5,
    ST6,
    ST6_BASE,
    ST6_SETTINGS,
    TinyModule,
    TinyVariant,
)
from tests.campaign.numpy_model import FLAG_OF

OLD_TYPE: Final = f"{ST5}Transformer"
NAMES: Final = {
    f"module_{side}_name": "sentence_embedding" for side in ("input", "output")
}  # of what they read and write


def saved_by_6(row: TinyVariant) -> TinyVariant | None:
    """Return the same model in the newer files; None: they have no place for something in it.

    Source: `save` of base/modules/transformer.py and the `config_keys` of the modules in
    sentence-transformers 6.2: the limit moves to the tokenizer.
    """
    settings = dict(row.settings or {})
    limit = settings.pop("max_seq_length", None)
    modules = [_module(module) for module in row.modules]
    is_old = row.transformer_type == OLD_TYPE and not any(settings.values())
    if not is_old or not modules or None in modules:
        return None
    tokenizer_config = row.tokenizer_config
    if limit is not None:
        tokenizer_config = tokenizer_config | {"model_max_length": limit}
    return replace(
        row,
        transformer_type=f"{ST6_BASE}transformer.Transformer",
        settings=ST6_SETTINGS,
        settings_name="sentence_bert_config.json",
        tokenizer_config=tokenizer_config,
        modules=tuple(module for module in modules if module is not None),
    )


def _module(module: TinyModule) -> TinyModule | None:
    config: dict[str, Any] = dict(module.config or {})
    match module.type.removeprefix(ST5):
        case "Pooling":
            modes = [name for name, flag in FLAG_OF.items() if config.get(f"pooling_mode_{flag}")]
            newer = {
                "embedding_dimension": config["word_embedding_dimension"],
                "pooling_mode": modes[0] if len(modes) == 1 else modes,
                "include_prompt": config.get("include_prompt", True),
            }
            return replace(module, type=f"{ST6}pooling.Pooling", config=newer)
        case "Dense":
            return replace(module, type=f"{ST6_BASE}dense.Dense", config=config | NAMES)
        case "LayerNorm":
            return replace(module, type=f"{ST6}layer_norm.LayerNorm")
        case "Normalize":
            return replace(module, type=f"{ST6_BASE}normalize.Normalize", config=NAMES)
    return None

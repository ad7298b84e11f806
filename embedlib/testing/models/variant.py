"""What a row of the table of tiny models is made of, and the modules that many rows share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TinyModule:
    """A module behind the transformer: its entry in modules.json and its config.json."""

    type: str
    path: str
    config: Json | None = None


@dataclass(frozen=True, kw_only=True)
class TinyVariant:
    """One row of the table: everything that is written, except the weights' values."""

    tokenizer: str
    """A kind of `tiny_tokenizers`."""
    config: Json
    modules: tuple[TinyModule, ...] = ()
    """Behind the transformer."""
    has_module_list: bool = False
    """Whether there is a modules.json although nothing follows the transformer."""
    transformer_type: str = "sentence_transformers.models.Transformer"
    transformer_path: str = ""
    tokenizer_config: Json = field(default_factory=dict)
    settings_name: str = "sentence_bert_config.json"
    settings: Json | None = None
    general: Json | None = None
    prefix: str = ""
    """Before every tensor name."""
    dtype: Literal["F32", "F16", "BF16"] = "F32"
    num_shards: int = 1
    reference_config: Json | None = None
    """The same model in keys that transformers reads, where it reads `config` only together with
    code of the model's own."""
    with_head: bool = False
    """Whether it is a reranker or classifier, and then the name of the template to ask it with."""
    template: str | None = None


ST5: Final = "sentence_transformers.models."
ST6: Final = "sentence_transformers.sentence_transformer.modules."
ST6_BASE: Final = "sentence_transformers.base.modules."
ST6_SETTINGS: Final[Json] = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
NORMALIZE: Final = TinyModule(type=ST5 + "Normalize", path="2_Normalize")


def pooling(*flags: str, dim: int = 32, **others: object) -> TinyModule:
    """Return a Pooling in the older spelling, with the flags set."""
    names = (
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    )
    config: Json = {"word_embedding_dimension": dim}
    config |= {f"pooling_mode_{name}": name in flags for name in names}
    return TinyModule(type=ST5 + "Pooling", path="1_Pooling", config=config | others)


MEAN: Final = pooling("mean_tokens")
LAST: Final = pooling("lasttoken")

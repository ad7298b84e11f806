"""The row type of the table of tiny models, and the modules that many rows share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TinyModule:
    """A module after the transformer: its entry in modules.json and its config.json."""

    type: str
    path: str
    config: Json | None = None


@dataclass(frozen=True, kw_only=True)
class TinyVariant:
    """One row of the table: the content of a model folder, except the values of its weights."""

    tokenizer: str
    """A key of `tokenizers.TOKENIZERS`."""
    config: Json
    modules: tuple[TinyModule, ...] = ()
    """The modules after the transformer."""
    has_module_list: bool = False
    """Whether modules.json is written even if no module follows the transformer."""
    transformer_type: str = "sentence_transformers.models.Transformer"
    transformer_path: str = ""
    tokenizer_config: Json = field(default_factory=dict)
    settings_name: str = "sentence_bert_config.json"
    settings: Json | None = None
    general: Json | None = None
    prefix: str = ""
    """Prefix of every tensor name."""
    dtype: Literal["F32", "F16", "BF16"] = "F32"
    num_shards: int = 1
    reference_config: Json | None = None
    """The same model with keys that transformers reads, for a `config` that transformers can read
    only with the model's own code."""
    has_own_reference: bool = False
    """Whether transformers has no such model: tests/goldens/own_models.py computes its vectors."""
    with_head: bool = False
    """Whether the model is a reranker or classifier."""
    metadata: Json | None = None
    """`artifact.metadata` of Stanford's ColBERT."""
    template: str | None = None
    """The name of the prompt template of a scoring model, if it needs one."""


SIZES: Final[Json] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
"""Of most tiny models; the others change some of them."""

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
    """Return a Pooling in the older format, with these flags set."""
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


IDENTITY: Final = "torch.nn.modules.linear.Identity"
MEAN: Final = pooling("mean_tokens")
LAST: Final = pooling("lasttoken")


def projection(path: str, in_features: int, out_features: int) -> TinyModule:
    """Return a Dense without bias and activation, in the older format."""
    config: Json = {
        "in_features": in_features,
        "out_features": out_features,
        "bias": False,
        "activation_function": IDENTITY,
    }
    return TinyModule(type=ST5 + "Dense", path=path, config=config)


def dense(path: str, in_features: int, out_features: int, kind: str, **others: Any) -> TinyModule:
    """Return a Dense in the format of sentence-transformers 6, without bias if not said."""
    config: Json = {
        "in_features": in_features,
        "out_features": out_features,
        "bias": False,
        "activation_function": kind,
        "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding",
    }
    return TinyModule(type=ST6_BASE + "dense.Dense", path=path, config=config | others)

"""The table of tiny models: what each variant writes, except the values of its weights.

Every family, every trait and every spelling of the files that the reader knows is in one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
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
    """Empty: the folder has no modules.json."""
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


BERT: Final[Json] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}
ROBERTA: Final[Json] = BERT | {
    "model_type": "roberta",
    "architectures": ["RobertaModel"],
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}
DECODER: Final[Json] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
QWEN3: Final[Json] = DECODER | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 2,
}
ST5: Final = "sentence_transformers.models."
ST6: Final = "sentence_transformers.sentence_transformer.modules."
ST6_BASE: Final = "sentence_transformers.base.modules."
ST6_SETTINGS: Final[Json] = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
NORMALIZE: Final = TinyModule(type=ST5 + "Normalize", path="2_Normalize")


def _pooling(*flags: str, dim: int = 32, **others: object) -> TinyModule:
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


MEAN: Final = _pooling("mean_tokens")
LAST: Final = _pooling("lasttoken")


def _llama(scaling: Json) -> TinyVariant:
    """Return a Llama with one kind of stretched rotary embedding, in the older spelling."""
    config = DECODER | {"rope_scaling": scaling}
    return TinyVariant(tokenizer="begin", config=config, modules=(LAST,), prefix="model.")


VARIANTS: Final[Mapping[str, TinyVariant]] = MappingProxyType(
    {
        "bert": TinyVariant(
            tokenizer="bert",
            config=BERT,
            modules=(MEAN, NORMALIZE),
            tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
            settings={"max_seq_length": 24, "do_lower_case": False},
            general={"__version__": {"sentence_transformers": "2.0.0"}},
        ),
        "bert-bare": TinyVariant(
            tokenizer="bert",
            config=BERT | {"hidden_act": "relu"},
            tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 40},
            prefix="bert.",
        ),
        "bert-cls-dense": TinyVariant(
            tokenizer="bert",
            config=BERT | {"hidden_act": "gelu_new"},
            transformer_type=ST6_BASE + "transformer.Transformer",
            transformer_path="0_Transformer",
            tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 30},
            settings=ST6_SETTINGS,
            modules=(
                TinyModule(
                    type=ST6 + "pooling.Pooling",
                    path="1_Pooling",
                    config={
                        "embedding_dimension": 32,
                        "pooling_mode": "cls",
                        "include_prompt": True,
                    },
                ),
                TinyModule(
                    type=ST6_BASE + "dense.Dense",
                    path="2_Dense",
                    config={
                        "in_features": 32,
                        "out_features": 20,
                        "bias": True,
                        "activation_function": "torch.nn.modules.activation.Tanh",
                        "module_input_name": "sentence_embedding",
                        "module_output_name": "sentence_embedding",
                    },
                ),
                TinyModule(
                    type=ST6 + "layer_norm.LayerNorm", path="3_LayerNorm", config={"dimension": 20}
                ),
                TinyModule(type=ST6_BASE + "normalize.Normalize", path="4_Normalize"),
            ),
            general={
                "model_type": "SentenceTransformer",
                "prompts": {"query": "query: ", "document": ""},
                "default_prompt_name": None,
                "similarity_fn_name": "dot",
                "truncate_dim": 16,
            },
        ),
        "bert-concat": TinyVariant(
            tokenizer="bert-cased",
            config=BERT | {"hidden_act": "gelu_pytorch_tanh"},
            modules=(
                _pooling(
                    "cls_token",
                    "max_tokens",
                    "mean_tokens",
                    "mean_sqrt_len_tokens",
                    "weightedmean_tokens",
                    "lasttoken",
                ),
            ),
            tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
            settings={"max_seq_length": 30, "do_lower_case": True},
        ),
        "bert-prompt": TinyVariant(
            tokenizer="bert",
            config=BERT,
            modules=(_pooling("mean_tokens", "weightedmean_tokens", include_prompt=False),),
            tokenizer_config={"tokenizer_class": "BertTokenizer", "model_max_length": 48},
            settings={"max_seq_length": 36, "do_lower_case": False},
            general={
                "prompts": {
                    "query": "Represent this sentence for search: ",
                    "passage": "Represent the passage: ",
                },
                "default_prompt_name": "passage",
                "similarity_fn_name": "cosine",
            },
        ),
        "roberta": TinyVariant(
            tokenizer="roberta",
            config=ROBERTA,
            modules=(
                MEAN,
                TinyModule(
                    type=ST5 + "Dense",
                    path="2_Dense",
                    config={
                        "in_features": 32,
                        "out_features": 48,
                        "bias": False,
                        "activation_function": "torch.nn.modules.linear.Identity",
                    },
                ),
            ),
            tokenizer_config={"tokenizer_class": "RobertaTokenizer", "model_max_length": 46},
            prefix="roberta.",
        ),
        "xlm-roberta": TinyVariant(
            tokenizer="xlm-roberta",
            config=ROBERTA | {"model_type": "xlm-roberta", "num_hidden_layers": 3},
            modules=(_pooling("cls_token"), NORMALIZE),
            tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"},
            settings_name="sentence_xlm-roberta_config.json",
            settings={"max_seq_length": 40},
            general={"prompts": {"query": "query: ", "passage": "passage: "}},
        ),
        "mistral": TinyVariant(
            tokenizer="mistral",
            config=DECODER
            | {
                "model_type": "mistral",
                "architectures": ["MistralModel"],
                "sliding_window": 6,
            },
            modules=(LAST, NORMALIZE),
            tokenizer_config={"tokenizer_class": "LlamaTokenizer", "model_max_length": 10**30},
            settings={"max_seq_length": 56, "do_lower_case": False},
            general={"prompts": {"search": "Instruct: search\nQuery: "}},
            dtype="BF16",
            num_shards=3,
        ),
        "mistral-bidirectional": TinyVariant(
            tokenizer="mistral",
            config=DECODER | {"model_type": "mistral", "sliding_window": 5, "is_causal": False},
            modules=(MEAN,),
            tokenizer_config={"tokenizer_class": "LlamaTokenizer"},
        ),
        "llama": TinyVariant(
            tokenizer="begin",
            config={key: value for key, value in DECODER.items() if key != "rope_theta"}
            | {
                "attention_bias": True,
                "mlp_bias": True,
                "head_dim": 8,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            },
            modules=(LAST,),
            prefix="model.",
        ),
        "llama-bare": TinyVariant(tokenizer="begin", config=DECODER, prefix="model."),
        "llama-linear": _llama({"type": "linear", "factor": 4.0}),
        "llama-dynamic": _llama({"rope_type": "dynamic", "factor": 2.0}),
        "llama-llama3": _llama(
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        ),
        "llama-yarn": _llama(
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
        ),
        "qwen2": TinyVariant(
            tokenizer="end",
            config=DECODER
            | {
                "model_type": "qwen2",
                "architectures": ["Qwen2Model"],
                "num_hidden_layers": 3,
                "use_sliding_window": True,
                "sliding_window": 4,
                "max_window_layers": 1,
            },
            modules=(LAST,),
            dtype="F16",
        ),
        "qwen3": TinyVariant(
            tokenizer="end",
            config=QWEN3,
            modules=(LAST, NORMALIZE),
            settings={"max_seq_length": 50, "do_lower_case": False},
            general={
                "prompts": {"query": "Instruct: search\nQuery:", "document": ""},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine",
            },
        ),
        "qwen3-bidirectional": TinyVariant(
            tokenizer="end", config=QWEN3 | {"is_causal": False}, modules=(MEAN,), prefix="model."
        ),
    }
)
"""Every variant there is."""

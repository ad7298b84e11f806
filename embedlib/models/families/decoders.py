"""Families derived from Llama: decoders. Some models' files make them attend in both directions.

Source: defaults, traits and tensor names are those of the classes in transformers 5.5,
`models/<family>/{configuration,modeling}_<family>.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from embedlib.models.families.row import (
    Alternation,
    Family,
    HeadLayer,
    Key,
    Projection,
    SequenceHead,
)
from embedlib.models.families.tensor_names import DECODER_TENSORS
from embedlib.models.spec import Normalize, Pooling

DECODER_PREFIXES: Final = ("", "model.", "0.auto_model.", "auto_model.")
DECODER_IGNORED: Final = ("lm_head.weight", "score.weight", "*rotary_emb.inv_freq")
DECODER_HEAD: Final = SequenceHead(
    pooling="last_token",
    skipped_token=Key("pad_token_id"),
    layers=(HeadLayer(tensors="score", has_bias=False),),
)

ROPE_THETA: Final = Key("rope_theta", 10_000.0)

LLAMA: Final = Family(
    model_type="llama",
    norm="rms_norm",
    norm_eps=Key("rms_norm_eps", 1e-6),
    norm_placement="pre",
    is_gated=True,
    activation=Key("hidden_act", "silu"),
    positions="rotary",
    rope_theta=ROPE_THETA,
    num_kv_heads=Key("num_key_value_heads"),
    head_dim=Key("head_dim"),
    is_causal=Key("is_causal", True),
    has_qkv_bias=Key("attention_bias", False),
    has_output_bias=Key("attention_bias", False),
    has_mlp_bias=Key("mlp_bias", False),
    fixed={"layer_types": (None,), "sliding_window": (None,), "use_sliding_window": (False, None)},
    prefixes=DECODER_PREFIXES,
    tensors=DECODER_TENSORS,
    ignored_tensors=DECODER_IGNORED,
    sequence_head=DECODER_HEAD,
    lm_head="lm_head.weight",
)


def _both_ways(row: Family) -> Family:
    """Return the row with attention both ways, which no file may turn off; it has no head."""
    fixed = {**row.fixed, "is_causal": (False, None)}
    return replace(row, is_causal=None, fixed=fixed, sequence_head=None, lm_head=None)


PLAIN_MISTRAL: Final = replace(
    LLAMA,
    model_type="mistral",
    tokenizer_class="TokenizersBackend",
    num_kv_heads=Key("num_key_value_heads", 8),
    windows="all_layers",
    window=Key("sliding_window", 4096),
    has_qkv_bias=False,
    has_output_bias=False,
    has_mlp_bias=False,
    # The class ignores layer_types, and its linear layers have no bias.
    fixed={"layer_types": (None,), "attention_bias": (False, None), "mlp_bias": (False, None)},
)

# Its class attends as its caller says, and its authors' library asks for both ways; then the class
# has no window, but with FlashAttention. The library leaves the instruction out of the mean.
# Source: GritLM.__init__ and encode of gritlm 1.0.2, gritlm/gritlm.py: attn "bbcc", pooling_method
# "mean", embed_instruction False, normalized True; github.com/ContextualAI/gritlm,
# scripts/modeling_mistral_gritlm.py, which the folder holds as modeling_gritlm7b.py.
GRITLM: Final = replace(
    _both_ways(PLAIN_MISTRAL),
    name="mistral-gritlm",
    windows="none",
    window=None,
    harmless=frozenset({"sliding_window"}),
    own_code={"AutoModel": ("modeling_gritlm7b.MistralModel",)},
    library_end=(Pooling(modes=("mean",), include_prompt=False), Normalize()),
)
MISTRAL: Final = replace(PLAIN_MISTRAL, own_rows=(GRITLM,))

PLAIN_QWEN2: Final = replace(
    LLAMA,
    model_type="qwen2",
    tokenizer_class="Qwen2Tokenizer",
    num_kv_heads=Key("num_key_value_heads", 32),
    windows="by_layer_type",
    window=Key("sliding_window", 4096),
    has_qkv_bias=True,
    has_output_bias=False,
    has_mlp_bias=False,
    # The class always has the biases of q, k and v, and never another one.
    fixed={"attention_bias": (True, None), "qkv_bias": (True, None), "mlp_bias": (False, None)},
)

PLAIN_QWEN3: Final = replace(
    LLAMA,
    model_type="qwen3",
    tokenizer_class="Qwen2Tokenizer",
    num_kv_heads=Key("num_key_value_heads", 32),
    head_dim=Key("head_dim", 128),
    windows="by_layer_type",
    window=Key("sliding_window", 4096),
    has_qk_norm=True,
    has_mlp_bias=False,
    fixed={"mlp_bias": (False, None)},
)

# The same with attention both ways. Source: text-embeddings-inference, router/src/lib.rs, and
# vLLM, model_executor/models/qwen2.py, for the class and the end that its tokenizer adds; and
# modeling_qwen.py in a copy of stella_en_1.5B_v5.
QWEN2_BOTH_WAYS: Final = replace(
    _both_ways(PLAIN_QWEN2),
    name="qwen2-both-ways",
    # The file of gte-Qwen2 says is_causal: false, that of stella_en_1.5B_v5 nothing. The class does
    # not read the key: forward(is_causal=False) is its default, and no caller gives another value.
    own_code={
        "AutoModel": (
            "modeling_qwen.Qwen2Model",
            "Alibaba-NLP/gte-Qwen2-1.5B-instruct--modeling_qwen.Qwen2Model",
            "Alibaba-NLP/gte-Qwen2-7B-instruct--modeling_qwen.Qwen2Model",
            "NovaSearch/stella_en_1.5B_v5--modeling_qwen.Qwen2Model",
            "infly/inf-retriever-v1--modeling_qwen.Qwen2Model",
            "infly/inf-retriever-v1-1.5b--modeling_qwen.Qwen2Model",
        )
    },
    ends_by_flags=True,
)
# Source: the card of huggingface.co/Kingsoft-LLM/QZhou-Embedding, "Model Refactoring": Qwen2Model
# with attention both ways, and padding on the left, which changes nothing.
QZHOU: Final = replace(
    _both_ways(PLAIN_QWEN2), name="qwen2-qzhou", own_code={"AutoModel": ("QZhouModel",)}
)
QWEN2: Final = replace(PLAIN_QWEN2, own_rows=(QWEN2_BOTH_WAYS, QZHOU))

_QWEN3_BOTH_WAYS: Final = _both_ways(PLAIN_QWEN3)

# Source: modeling_qwen3_bidirectional.py of voyage-4-nano: Qwen3 with attention both ways and a
# matrix behind; and vLLM, model_executor/models/voyage.py. Another model has a class of the same
# name without the matrix in a file of another name, so the file belongs to the name.
VOYAGE: Final = replace(
    _QWEN3_BOTH_WAYS,
    name="qwen3-voyage",
    fixed={**_QWEN3_BOTH_WAYS.fixed, "use_bidirectional_attention": (True, None)},
    own_code={
        "AutoModel": (
            "modeling_qwen3_bidirectional.Qwen3BidirectionalModel",
            "voyageai/voyage-4-nano--modeling_qwen3_bidirectional.Qwen3BidirectionalModel",
        )
    },
    projection=Projection(tensor="linear", features=Key("num_labels")),
    ignored_tensors=(*DECODER_IGNORED, "linear.*"),
)
QWEN3: Final = replace(PLAIN_QWEN3, own_rows=(VOYAGE,))

# Source: modeling.py of huggingface.co/perplexity-ai/pplx-embed-v1-0.6b: Qwen3Model whose layers
# are not causal, with a mask of padding alone; its configuration adds nothing.
PPLX_QWEN3: Final = replace(
    _QWEN3_BOTH_WAYS,
    model_type="bidirectional_pplx_qwen3",
    fixed={**_QWEN3_BOTH_WAYS.fixed, "use_bidirectional_attention": (True, None)},
    own_code={"AutoModel": ("PPLXQwen3Model",)},
)

# Those of BidirLM that are made of Qwen3: its layers with attention both ways and no window.
# Source: the card of huggingface.co/BidirLM/BidirLM-270M-Embedding; BidirLMOmniTextModel, the text
# half of BidirLM-Omni, in modeling_bidirlm_omni.py; and the code that they were trained with,
# optimus/tools/huggingface/biqwen/modeling_biqwen_mntp.py. The folders are not yet seen: the class
# is called after that of BidirLM-Omni, and one of another name is refused.
BIDIRLM: Final = replace(
    _QWEN3_BOTH_WAYS,
    model_type="bidirlm",
    windows="none",
    window=None,
    # The defaults of its configuration are not known.
    implied={"model_type": ("head_dim", "num_key_value_heads")},
    fixed={
        **_QWEN3_BOTH_WAYS.fixed,
        "use_sliding_window": (False, None),
        "sliding_window": (None,),
        "layer_types": (None,),
    },
    harmless=frozenset({"clf_pooling", "max_window_layers"}),
    own_code={"AutoModel": ("modeling_bidirlm.BidirLMModel",)},
)

MINISTRAL3: Final = replace(
    PLAIN_MISTRAL,
    model_type="ministral3",
    norm_eps=Key("rms_norm_eps", 1e-5),
    head_dim=Key("head_dim", 128),
    # The class scales queries with the numbers of this kind, so files always have it.
    rope_kinds=("yarn",),
    ends_at_original_length=True,
    window=Key("sliding_window"),
    # Of Nemotron-3-Embed; its authors' library reads it, and takes no other value: NeMo-Retriever,
    # nemo_retriever/models/embed_model_spec.py. The class does not read it.
    fixed={**PLAIN_MISTRAL.fixed, "pooling": ("avg", None)},
    sequence_head=replace(DECODER_HEAD, skipped_token=Key("pad_token_id", 11)),
)

# Source: huggingface.co/nvidia/llama-nemotron-embed-1b-v2, llama_bidirectional_model.py: a Llama
# whose attention goes both ways; its configuration adds only what its own pooling and head read.
_LLAMA_BOTH_WAYS: Final = _both_ways(LLAMA)
LLAMA_BIDIREC: Final = replace(
    _LLAMA_BOTH_WAYS,
    model_type="llama_bidirec",
    fixed={**_LLAMA_BOTH_WAYS.fixed, "pooling": ("avg", None)},
    own_code={
        "AutoModel": ("llama_bidirectional_model.LlamaBidirectionalModel",),
        "AutoModelForSequenceClassification": (
            "llama_bidirectional_model.LlamaBidirectionalForSequenceClassification",
        ),
    },
    sequence_head=SequenceHead(
        pooling="mean",
        layers=(HeadLayer(tensors="score", has_bias=False),),
        fixed={"temperature": (1.0,)},  # by which the class divides the scores
    ),
)

# What is trained from them names their code.
_EUROBERT_CODE: Final = (
    "modeling_eurobert.",
    "EuroBERT/EuroBERT-210m--modeling_eurobert.",
    "EuroBERT/EuroBERT-610m--modeling_eurobert.",
    "EuroBERT/EuroBERT-2.1B--modeling_eurobert.",
)
EUROBERT: Final = replace(
    _LLAMA_BOTH_WAYS,
    model_type="eurobert",
    norm_eps=Key("rms_norm_eps", 1e-5),
    own_code={
        "AutoModel": tuple(f"{place}EuroBertModel" for place in _EUROBERT_CODE),
        "AutoModelForSequenceClassification": tuple(
            f"{place}EuroBertForSequenceClassification" for place in _EUROBERT_CODE
        ),
    },
    harmless=frozenset({"clf_pooling"}),
    ignored_tensors=(*DECODER_IGNORED, "dense.*", "classifier.*"),
    sequence_head=SequenceHead(
        # "late", which the class takes by default, has no pooled vector: it averages the scores.
        pooling=Key("classifier_pooling", "late"),
        layers=(
            HeadLayer(tensors="dense", activation="gelu"),
            HeadLayer(tensors="classifier"),
        ),
    ),
)

ULTRABERT: Final = replace(
    EUROBERT,
    model_type="ultrabert",
    norm_eps=Key("rms_norm_eps", 1e-6),
    windows="alternating",
    window=Key("sliding_window", 128),
    alternation=Alternation(every=3, full="last", halves=False),
    rope_theta=Key("rope_theta", 2_560_000.0),
    window_rope_theta=Key("rope_theta", 10_000.0),
    rope_kinds=("default",),
    # Older files have lists of these two, one number per layer.
    fixed={"is_causal": (False, None), "attention_windows": (None,), "rope_theta": (None,)},
    own_code={},
    harmless=frozenset({"prediction_head_size"}),
    sequence_head=None,
)

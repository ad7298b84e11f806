"""What models without a row are, and which ones with a row come nearest.

A message that lists what is accepted does not tell a user of such a model what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LINEAR: Final = (
    "mixes attention with layers that are none, which embedlib does not compute; Qwen3-Embedding "
    "and Qwen3-Reranker are the nearest that load"
)
_TEXT_TO_TEXT: Final = (
    "has an encoder and a decoder, which embedlib does not compute; ettin-reranker and "
    "Qwen3-Reranker are the nearest rerankers that load, embeddinggemma-300m the nearest embedder"
)
_IMAGES: Final = (
    "takes images, which embedlib does not; Qwen3-Embedding and Nemotron-3-Embed are the nearest "
    "for text"
)
_OLD: Final = (
    "is a text generator of before 2023, which embedlib does not compute; Qwen3-Embedding-0.6B and "
    "multilingual-e5 are the nearest that load"
)
_LONG: Final = (
    "is for long texts, by attention which embedlib does not compute; gte-modernbert-base and "
    "granite-embedding-english-r2 read 8,192 tokens"
)
MODEL_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_next", "lfm2_moe", "lfm3"), _LINEAR
    ),
    **dict.fromkeys(("mt5", "umt5", "t5gemma", "t5gemma2"), _TEXT_TO_TEXT),
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "mistral3", "gemma3", "bidirlm_omni"), _IMAGES
    ),
    **dict.fromkeys(("llama_nemotron_vl", "llama_nemotron_vl_rerank"), _IMAGES),
    **dict.fromkeys(("clip", "clip_text_model", "siglip", "siglip2"), _IMAGES),
    **dict.fromkeys(("bloom", "gpt2", "gpt_neo", "gptj"), _OLD),
    **dict.fromkeys(("big_bird", "longformer"), _LONG),
    "deberta": "is the first DeBERTa, which embedlib does not compute; of the third, "
    "nli-deberta-v3-base and mxbai-rerank-base-v1 load",
    "codesage": "has code of its own, which embedlib never runs; CodeRankEmbed and "
    "nomic-embed-code are the nearest for code",
    "luke": "reads names of things beside words, which embedlib does not; multilingual-e5 and, for "
    "Japanese, ruri-v3 are the nearest that load",
    "xlnet": "attends in an order of its own, which embedlib does not compute; multilingual-e5 and "
    "gte-modernbert-base are the nearest that load",
    "bart": "has an encoder and a decoder, which embedlib does not compute; for bart-large-mnli, "
    "MoritzLaurer/deberta-v3-large-zeroshot-v2.0 is the nearest zero-shot classifier",
    "mixtral": "has experts in every layer, which embedlib does not compute in decoders; "
    "GritLM-7B and e5-mistral-7b-instruct are the nearest that load",
    "nvembed": "pools with layers of its own, which embedlib does not compute; "
    "Qwen3-Embedding-8B is the nearest that loads",
}
"""By `model_type`."""

_TO_THE_LEFT: Final = (
    "reads from left to right, with layers that are no attention, which embedlib does not compute; "
    "LFM2.5-Embedding-350M and Qwen3-Embedding-0.6B are the nearest that load"
)
ARCHITECTURES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Lfm2Model", "Lfm2ForCausalLM"), _TO_THE_LEFT),
    "GritLM": "is vLLM's form of GritLM, whose files do not tell what is pooled; "
    "GritLM/GritLM-7B is the one that loads",
    "JinaForRanking": "is a listwise reranker: its scores depend on the other documents of the "
    "call; Qwen3-Reranker and ettin-reranker score every pair on its own",
}
"""By the first of `architectures`."""

NEAREST: Final = "Qwen3-Embedding is the nearest that loads"
"""For a class of which nothing else is known."""

OWN_CLASSES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("JasperModel", "JasperV2Encoder"),
        "Jasper pools tokens inside the model; Qwen3-Embedding-0.6B is the nearest that loads",
    ),
    "jinaai/jina-bert-v2-qk-devlin-norm-1e-2--modeling_bert.JinaBertModel": "its norms of queries "
    "and keys are not yet seen; jina-embeddings-v2-base-de and gte-multilingual-base are the "
    "nearest that load",
    "NVEmbedModel": "it pools with layers of its own; Qwen3-Embedding-8B is the nearest that loads",
}
"""By the class that `auto_map` names, with or without its file: what is known of it."""

_MECAB: Final = (
    "divides words with MeCab, which embedlib does not; ruri-v3 and multilingual-e5 are the "
    "nearest for Japanese that load"
)
TOKENIZERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("BertJapaneseTokenizer", "MecabTokenizer"), _MECAB),
    "BertweetTokenizer": "rewrites tweets with code of its own, which embedlib does not; "
    "cardiffnlp/twitter-roberta-base-sentiment-latest is the nearest that loads",
    "PhobertTokenizer": "joins pieces by rules of its own, which embedlib does not; "
    "AITeamVN/Vietnamese_Embedding and multilingual-e5 are the nearest for Vietnamese that load",
}
"""By `tokenizer_class`, of folders without tokenizer.json: classes that never write one."""

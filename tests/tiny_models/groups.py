"""Groups of the variants in `embedlib.testing.models.table`."""

from __future__ import annotations

from typing import Final

OPENVINO_ALONE: Final = frozenset({"embedding_gemma2_text", "albert", "electra-reranker"})
"""Variants that the GPU engines refuse."""

ALIKE: Final = frozenset(
    {
        *("camembert", "ernie", "electra", "jina_embeddings_v3", "gte-native"),
        *("eurobert", "llama_bidirec", "gemma", "jina_bert", "qwen2-both-ways", "qwen3-voyage"),
        *("mistral-gritlm", "bidirlm", "nomic_bert-long"),
    }
)
"""Variants of `VARIANTS` that differ from others in names and defaults alone: to an engine they are
nothing new, once their vectors are right."""

GRAPHS: Final = (
    *(
        "albert",
        "bert-cls-dense",
        "bert-concat",
        "bert-prompt",
        "deberta-v2",
        "embedding_gemma2_text",
    ),
    *("gemma2", "gemma2-bidirectional", "gemma3_text", "gemma3_text-causal", "gte"),
    *("jina_bert-code", "lfm2", "llama", "llama-bidirectional", "ministral3", "mistral"),
    *("modernbert", "modernbert-biases", "mpnet", "nomic_bert", "nomic_bert-moe", "pplx"),
    *("qwen2", "qwen3", "t5", "t5-gated", "ultrabert", "xlm-roberta", "xlm-roberta-xl"),
)
"""One of each kind of graph, by its inputs, operators, positions and norms: these are cut into
stages and computed in lower precisions."""

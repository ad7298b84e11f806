"""Groups of the variants in `embedlib.testing.models.table`."""

from __future__ import annotations

from typing import Final

OPENVINO_ALONE: Final = frozenset({"embedding_gemma2_text"})
"""Variants that the GPU engines refuse."""

ALIKE: Final = frozenset(
    {
        *("camembert", "ernie", "electra", "jina_embeddings_v3", "gte-native"),
        *("eurobert", "llama_bidirec", "gemma", "jina_bert", "qwen2-both-ways", "qwen3-voyage"),
        *("mistral-gritlm", "bidirlm"),
    }
)
"""Variants of `VARIANTS` that differ from others in names and defaults alone: to an engine they are
nothing new, once their vectors are right."""

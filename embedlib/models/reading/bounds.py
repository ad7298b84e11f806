"""The bounds of the numbers in model files: several times the greatest of any known model.

A number beyond them comes from a damaged file, or from one that is meant to take the machine's time
or memory: a reader makes something for each layer and label before it looks at the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

GREATEST_COUNT: Final = 2**31 - 1
"""Of every integer without an entry: engines count tokens and places in int32."""

GREATEST_INTEGERS: Final[Mapping[str, int]] = {
    "num_hidden_layers": 1024,  # 126: Llama 3.1 405B
    "max_window_layers": 65_536,  # a place among the layers; may be beyond the last
    "hidden_size": 65_536,  # 16,384: Llama 3.1 405B
    "intermediate_size": 2**20,  # 53,248: Llama 3.1 405B
    "num_attention_heads": 1024,  # 128: Llama 3.1 405B
    "num_key_value_heads": 1024,
    "head_dim": 4096,  # 256: Gemma
    "vocab_size": 2**24,  # 262,144: Gemma 3; token-free and merged ones reach a million
    "pad_token_id": 2**24,  # a token id, as the following two
    "true_token_id": 2**24,
    "false_token_id": 2**24,
    "max_position_embeddings": 2**24,  # 10,485,760: Llama 4 Scout
    "n_positions": 2**24,
    "original_max_position_embeddings": 2**24,
    "type_vocab_size": 1024,  # 2: BERT
    "sliding_window_pattern": 1024,  # 6: Gemma 3
    "global_attn_every_n_layers": 1024,  # 3: ModernBERT
    "conv_L_cache": 1024,  # 3: LFM2
    "block_multiple_of": 65_536,  # 256: LFM2
    "num_labels": 2**20,  # 21,843: ImageNet-21k; extreme classification reaches 670,091
    "out_features": 2**20,  # 4,096 is common in Dense
    "truncate_dim": 2**20,
}
"""By key of config.json in the canonical spelling, and of the modules' config.json.

Source: config.json of the models named, on huggingface.co; extreme classification: Amazon-670K of
http://manikvarma.org/downloads/XC/XMLRepository.html.
"""

NUMBERS: Final = (1e-30, 1e30)
"""Lowest and greatest of every number without an entry: what a float32 holds, and its square root
too."""

NUMBERS_BY_KEY: Final[Mapping[str, tuple[float, float]]] = {
    # The angles' base: 10,000 is common, 10**8 the greatest. YaRN divides by its logarithm.
    **dict.fromkeys(
        ("rope_theta", "global_rope_theta", "local_rope_theta", "rope_local_base_freq"),
        (2.0, 1e12),
    ),
    # transformers writes int(1e30) for "no limit", others Infinity.
    **dict.fromkeys(("model_max_length", "max_len"), (1.0, math.inf)),
}
"""Lowest and greatest, by key."""

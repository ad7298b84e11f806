"""DeBERTa beside transformers at the lengths at which distances begin to share a vector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing import make_batch
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.variant import pooling
from embedlib.testing.models.write import write_variant
from tests.comparing import relative_errors
from tests.tiny_encoders import computed

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
LENGTHS = (1, 2, 127, 128, 129, 255, 256, 257, 511, 512)
"""Up to 128 tokens away, each distance of DeBERTa-v3 has a vector of its own."""


@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens"])
def test_vectors_are_those_of_transformers(mode: str, tmp_path: Path) -> None:
    row = VARIANTS["deberta-v2"]
    config = row.config | {"position_buckets": 256, "max_position_embeddings": 512}
    limit = row.tokenizer_config | {"model_max_length": 512}
    row = replace(row, config=config, tokenizer_config=limit, modules=(pooling(mode),))
    folder = write_variant(tmp_path, "deberta-v2", row)
    files = read_model_files(folder)
    engine = OpenVINOEngine(files.spec, load_weights(files), Layout(threads=1))
    peer = transformers.AutoModel.from_pretrained(
        str(folder), attn_implementation="eager", dtype=torch.float32
    ).eval()
    dice = np.random.default_rng(0)
    size = files.spec.encoder.vocab_size
    for length in LENGTHS:
        # A shorter text beside it: its padding is not seen.
        texts = [dice.integers(5, size, number, np.int32) for number in (length, (length + 1) // 2)]
        found = computed(engine, make_batch(texts))
        for text, vector in zip(texts, found, strict=True):
            with torch.no_grad():
                hidden = peer(torch.from_numpy(text[None].astype(np.int64))).last_hidden_state[0]
            expected = (hidden[0] if mode == "cls_token" else hidden.mean(0)).numpy()
            assert relative_errors(vector[None], expected[None]).max() <= 1e-4
    engine.close()

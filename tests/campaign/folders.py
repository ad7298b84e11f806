"""Random model folders: families, poolings, Dense chains, heads, prompts and limits.

A folder is refused in one line, or its vectors are those of the reference: sentence-transformers
where it is installed, and always numpy for what follows the transformer. The vectors must not
depend on the batch, and a prompt must be the same by name and as text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib import Embedder
from embedlib.errors import EmbedlibError
from embedlib.models.reading.files import read_model_files
from embedlib.models.weights.load import load_weights
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.variant import (
    NORMALIZE,
    ST5,
    Json,
    TinyModule,
    TinyVariant,
    pooling,
)
from embedlib.testing.models.write import write_variant
from tests.campaign import reference
from tests.campaign.knobs import KNOBS, TEXTS, TOLERANCE
from tests.campaign.numpy_model import ACTIVATIONS, FLAGS, vector_of
from tests.campaign.saved_versions import saved_by_6
from tests.campaign.scoring_folders import judge_scoring_folder
from tests.campaign.verdict import Judge, Verdict, finding, judge_at, judge_error, reference_fails

WIDTHS: Final = ("num_labels", "embedding_dim", "hidden_size", "n_embd", "dim", "d_model")
"""Keys of the width of a token's vector; the first in a file is it."""
NEWER: Final = 0.3
"""Share of folders in the files that sentence-transformers 6 saves."""
SCORERS: Final = 0.3
"""Share of rerankers and classifiers."""
OWN_CODE: Final = (
    *("new", "new-types", "gte", "nomic_bert-own-keys", "nomic_bert-both-keys"),
    *("jina_bert", "jina_bert-code", "nomic_bert-moe", "qwen2-both-ways", "qwen3-voyage"),
    *("pplx", "lfm2", "mistral-gritlm", "bidirlm", "llama_bidirec"),
)
"""Variants whose config.json only the model's own code reads: no reference for them here; the part
`families` has one for all behind the first line."""


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge that has imported the reference."""
    reference.prepare()

    def judge(rng: random.Random, place: Path) -> Verdict:
        is_scorer = rng.random() < SCORERS
        return (judge_scoring_folder if is_scorer else judge_folder)(rng, place)

    yield judge_at(folder / "model", judge)


def judge_folder(rng: random.Random, place: Path) -> Verdict:
    """Write a folder, load it and compare its vectors."""
    base, row, what = draw_row(rng)
    try:
        write_variant(place, f"{base} {rng.random()}", row)
        embedder = Embedder(place, precision="float32", on_truncate="ignore")
    except EmbedlibError as error:
        return judge_error(error, what)
    with embedder:
        complaint = compare_with_itself(embedder, place, row)
        if complaint:
            return finding("different", f"{what}: {complaint}")
        if base in OWN_CODE or not reference.is_installed():
            return Verdict("same by numpy", what)
        return compare_with_reference(embedder, place, what)


def draw_row(
    rng: random.Random, bases: Sequence[str] = tuple(VARIANTS)
) -> tuple[str, TinyVariant, str]:
    """Return a base, the content of a folder drawn from it, and what was drawn."""
    base = rng.choice(sorted(bases))
    row = VARIANTS[base]
    known = [key for key in KNOBS if key in row.config or key in ("attention_dropout", "use_cache")]
    chosen = {key: rng.choice(KNOBS[key]) for key in rng.sample(known, rng.randrange(4))}
    dim = next(row.config[key] for key in WIDTHS if key in row.config)
    prompts = rng.choice((None, {"query": "query: ", "document": ""}, {"any": "search text "}))
    # Truncated vectors differ by length from sentence-transformers', which is documented.
    own = None if row.general is None else {**row.general, "truncate_dim": None}
    general = {"prompts": prompts, "default_prompt_name": rng.choice((None, *(prompts or ())))}
    limit = rng.choice((None, 8, 20))
    drawn = replace(
        row,
        config=row.config | chosen,
        # Rounded vectors are not compared: two that are equal may round apart.
        modules=draw_modules(rng, dim) if rng.random() < 0.8 or base == "pplx" else row.modules,
        transformer_path=rng.choice(("", "0_Transformer")) if row.modules else "",
        settings=row.settings if limit is None else {"max_seq_length": limit},
        general=own if prompts is None else general,
        dtype=rng.choice(("F32", "F16", "BF16")),
        num_shards=rng.choice((1, 1, 2, 3)),
    )
    kinds = [module.type.rpartition(".")[2] for module in drawn.modules]
    what = f"{base} {chosen} {kinds} {drawn.dtype} limit {limit}"
    newer = saved_by_6(drawn) if rng.random() > 1 - NEWER else None
    return (base, drawn, what) if newer is None else (base, newer, f"{what}, saved by 6")


def draw_modules(rng: random.Random, dim: int) -> tuple[TinyModule, ...]:
    """Return a Pooling and up to three modules after it."""
    flags = rng.sample(FLAGS, rng.choice((1, 1, 1, 2, 3)))
    modules = [pooling(*flags, dim=dim)]
    width = dim * len(flags)
    for number in range(2, 2 + rng.randrange(4)):
        kind = rng.choice(("Dense", "Dense", "LayerNorm", "Normalize"))
        if kind == "Normalize":
            modules.append(replace(NORMALIZE, path=f"{number}_Normalize"))
        elif kind == "LayerNorm":
            config: Json = {"dimension": width}
            modules.append(TinyModule(type=f"{ST5}LayerNorm", path=f"{number}_Norm", config=config))
        else:
            out = rng.choice((8, 24, 56))
            config = {
                "in_features": width,
                "out_features": out,
                "bias": rng.random() < 0.5,
                "activation_function": rng.choice(sorted(ACTIVATIONS)),
            }
            modules.append(TinyModule(type=f"{ST5}Dense", path=f"{number}_Dense", config=config))
            width = out
    return tuple(modules)


def compare_with_itself(embedder: Embedder, place: Path, row: TinyVariant) -> str:
    """Say how vectors depend on what they must not depend on, or differ from numpy's."""
    together = embedder.encode(list(TEXTS), prompt="")
    alone = [embedder.encode(text, prompt="") for text in TEXTS]
    checks: dict[str, tuple[Any, Any]] = {"alone and in a batch": (alone, together)}
    for name, prompt in embedder.prompts.items():
        by_name = embedder.encode(list(TEXTS), prompt_name=name)
        checks[f"prompt {name!r}"] = (by_name, embedder.encode(list(TEXTS), prompt=prompt))
    if row.modules:
        tokens = embedder.encode(list(TEXTS), prompt="", output_value="token_embeddings")
        matrix = projection(place)
        expected = [
            vector_of(vectors if matrix is None else vectors @ matrix.T, place, row)
            for vectors in tokens
        ]
        checks["modules in numpy"] = (together, expected)
    for name, (got, wanted) in checks.items():
        error = reference.error_of(got, wanted)
        if error > TOLERANCE:
            return f"{name}: {error:.1e} apart"
    return ""


def projection(place: Path) -> NDArray[np.float32] | None:
    """Return the matrix at the end of the transformer's class, if it has one."""
    files = read_model_files(place)
    return load_weights(files)["modules.1.weight"] if files.module_tensors else None


def compare_with_reference(embedder: Embedder, place: Path, what: str) -> Verdict:
    """Judge the vectors beside those of sentence-transformers."""
    names = ["encode", "encode_query", "encode_document"]
    if "passage" in embedder.prompts:  # documented: it is taken for documents here
        names.remove("encode_document")
    ours = [getattr(embedder, name)(list(TEXTS)) for name in names]
    try:
        peer = reference.open_reference(place)
        pairs = [
            (vectors, getattr(peer, name)(list(TEXTS)))
            for name, vectors in zip(names, ours, strict=True)
        ]
    except Exception as error:
        return reference_fails(error, what)
    gap = max(reference.error_of(got, wanted) for got, wanted in pairs)
    if gap > TOLERANCE:
        return finding("different", f"{what}: {gap:.1e} from sentence-transformers")
    return Verdict("same", what)

"""Random folders of the families that came last, each beside a reference of its own.

What sentence-transformers loads is compared with it; of the others, the vectors of tokens are those
of tests/goldens/own_models.py, and numpy computes what follows. A folder is refused in one line, or
its vectors are those: there is no third outcome.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from embedlib import Embedder
from embedlib.errors import EmbedlibError
from embedlib.testing.models.variant import TinyVariant
from embedlib.testing.models.write import write_variant
from tests.campaign import reference
from tests.campaign.folders import compare_with_itself, compare_with_reference, draw_row
from tests.campaign.knobs import TEXTS, TOLERANCE
from tests.campaign.numpy_model import vector_of
from tests.campaign.verdict import (
    Judge,
    Verdict,
    describe,
    finding,
    judge_at,
    judge_error,
    reference_fails,
)

BASES: Final = (
    *("t5", "t5-gated", "jina_bert", "jina_bert-code", "nomic_bert-moe", "embedding_gemma2_text"),
    *("qwen2-both-ways", "qwen3-voyage", "pplx", "lfm2", "mistral-gritlm", "bidirlm"),
    *(
        "camembert",
        "xlm-roberta-xl",
        "ernie",
        "ernie-tasks",
        "electra",
        "albert",
        "deberta-v2",
        "jina_embeddings_v3",
    ),
    *("gte-native", "eurobert", "ultrabert", "ministral3", "llama_bidirec", "gemma"),
)
OWN: Final = (
    *("jina_bert", "jina_bert-code", "nomic_bert-moe", "qwen3-voyage", "pplx", "lfm2"),
    *("mistral-gritlm", "bidirlm", "llama_bidirec"),
)
"""Those that sentence-transformers does not load."""
STRINGS: Final = 40
"""Of which token ids are compared, in every case."""
LETTERS: Final = (
    *"abcdefghij tenrsAEZ",
    *" .,-'!?/0123",
    *"éüß\u00a0你好世日本🙂ער\t\n",
    "the ",
    " and",
)
OWN_MODELS: Final = Path(__file__).parents[1] / "goldens" / "own_models.py"


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge that has imported the references."""
    reference.prepare()
    yield judge_at(folder / "model", judge_folder)


def judge_folder(rng: random.Random, place: Path) -> Verdict:
    """Write a folder, load it and compare its vectors."""
    base, row, what = draw_row(rng, BASES)
    if base in OWN:
        # Its reference reads one file beside config.json.
        row = replace(row, num_shards=1, transformer_path="", dtype="F32")
    if base == "mistral-gritlm":
        # With modules.json it is refused, of which a test tells more.
        row = replace(row, modules=())
    try:
        write_variant(place, f"{base} {rng.random()}", row)
        embedder = Embedder(place, precision="float32", on_truncate="ignore")
    except EmbedlibError as error:
        return judge_error(error, what)
    with embedder:
        complaint = compare_with_itself(embedder, place, row)
        if complaint:
            return finding("different", f"{what}: {complaint}")
        if not reference.is_installed():
            return Verdict("same by numpy", what)
        verdict = None
        if base in OWN:
            verdict = compare_with_own(embedder, place, row, what)
        folder = _without_own_code(place)
        verdict = verdict or compare_with_reference(embedder, place, what)
        if verdict.is_finding:
            return verdict
        return compare_ids(embedder, folder, rng, verdict)


def compare_ids(embedder: Embedder, folder: Path, rng: random.Random, verdict: Verdict) -> Verdict:
    """Judge the token ids of drawn strings beside those of transformers."""
    from transformers import AutoTokenizer

    try:
        peer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        what = f"{verdict.what}: the tokenizer of transformers: {describe(error)}"
        return replace(verdict, kind=f"{verdict.kind}, no ids to compare", what=what, is_told=True)
    for _ in range(STRINGS):
        text = "".join(rng.choices(LETTERS, k=rng.randrange(1, 40)))
        got, wanted = embedder.tokenizer.encode(text).ids, peer(text)["input_ids"]
        if got != wanted:
            return finding("other ids", f"{verdict.what}: {text!r}: {got}, not {wanted}")
    return replace(verdict, counts={"strings": STRINGS})


def compare_with_own(embedder: Embedder, place: Path, row: TinyVariant, what: str) -> Verdict:
    """Judge the vectors beside those of a model in plain torch."""
    import torch

    models, config = own_models(), json.loads((place / "config.json").read_text())
    drawn = {key: value for key, value in config.items() if key in (row.reference_config or {})}
    wanted = {**(row.reference_config or {}), **drawn, "is_causal": False}
    wanted = {**wanted, "model_type": (row.reference_config or {}).get("model_type")}
    tensors = models.load_file(place / "model.safetensors")
    # A copy: that of the embedder is shared with its threads.
    tokenizer = Tokenizer.from_str(embedder.tokenizer.to_str())
    tokenizer.enable_truncation(embedder.max_seq_length)
    try:
        kind = config["model_type"]
        hidden = models.MODELS.get(kind) or models.peer(place, wanted)
        expected = []
        for text in TEXTS:
            tokens = hidden(torch.tensor(tokenizer.encode(text).ids), tensors, config)
            is_gritlm = not row.modules
            expected.append(
                models.gritlm(tokens, 0).numpy()
                if is_gritlm
                else vector_of(tokens.numpy(), place, row)
            )
    except Exception as error:
        return reference_fails(error, what)
    got: Any = embedder.encode(list(TEXTS), prompt="")
    gap = reference.error_of(got, np.array(expected))
    if gap > TOLERANCE:
        return finding("different", f"{what}: {gap:.1e} from the model in torch")
    return Verdict("same", what)


def _without_own_code(place: Path) -> Path:
    """Name no class of the folder's own, so that the reference takes that of transformers.

    Returns:
        the folder of the transformer.
    """
    (tokenizer,) = place.glob("**/tokenizer.json")
    path = tokenizer.with_name("config.json")
    config = json.loads(path.read_text())
    config.pop("auto_map", None)
    path.write_text(json.dumps(config))
    return path.parent


@cache
def own_models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_models", OWN_MODELS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Peers on the same files and ids, each in its own process, in turns with the engine's."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from embedlib.bench.peers import missing_of
from embedlib.measuring.process import ContestantFailedError
from tests.acceptance.gpu.children import Place
from tests.acceptance.gpu.models import Precision
from tests.acceptance.gpu.session import RACE, GpuSession
from tests.acceptance.gpu.verdicts import BULK_LENGTHS, QUERY_TOKENS

SENTENCE_TRANSFORMERS: Final = "sentence-transformers"
PEER_MODULES: Final = ("sentence_transformers", "torch")
"""What it needs."""
VLLM_QUANTIZATIONS: Final = MappingProxyType({"fp8": ("fp8_per_channel", "fp8"), "bf16": (None,)})
"""By our precision. The first one rounds as embedlib does, the second one is vLLM's usual one."""
VLLM_BATCH_TOKENS: Final = (16_384, 32_768)
MEASUREMENTS: Final = RACE + 2
"""Of a peer: its turns and ours, and queries; finding its settings takes about one as well."""
COMPARED_LENGTHS: Final = (3, 16, 130, 300, 512)


def peers(session: GpuSession, model: str) -> None:
    """Measure every peer that is here."""
    precision = session.passed[model][0]
    ours = session.ours(model, precision)
    asked: list[tuple[str, dict[str, Any]]] = []
    missing = missing_of(PEER_MODULES)
    if missing:
        reason = f"{', '.join(missing)} missing; pip install {SENTENCE_TRANSFORMERS}"
        session.journal.add("peers", model=model, peer=SENTENCE_TRANSFORMERS, skipped=reason)
    else:
        asked.append((SENTENCE_TRANSFORMERS, {}))
    if session.options.vllm_path is None:
        session.journal.add("peers", model=model, peer="vllm", skipped="no --vllm-path was given")
    else:
        asked += [("vllm", options) for options in vllm_options(precision)]
    if not asked:
        return
    folder = session.model_folder(model)
    for number, (name, options) in enumerate(asked):
        label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
        facts = {"model": model, "precision": precision, "peer": label}
        if session.budget.left_s <= 0:
            session.journal.add("peers", **facts, skipped="the time of the block is over")
            continue
        load = {"model": model, "folder": str(folder), **options}
        path = session.options.vllm_path if name == "vllm" else None
        peer = Place(name, tuple(load.items()), path)
        try:
            _measure(session, ours, peer, facts, MEASUREMENTS * (len(asked) - number))
        except ContestantFailedError as error:
            session.journal.add("peers", **facts, failed=str(error))
        session.children.end(peer)


def vllm_options(precision: Precision) -> list[dict[str, Any]]:
    """Return what vLLM is tried with, the most promising first."""
    return [
        {"quantization": quantization, "max_num_batched_tokens": num_tokens}
        for num_tokens in VLLM_BATCH_TOKENS
        for quantization in VLLM_QUANTIZATIONS[precision]
    ]


def _measure(
    session: GpuSession, ours: Place, peer: Place, facts: dict[str, Any], num_left: int
) -> None:
    """Measure one peer.

    Raises:
        ContestantFailedError: it cannot be prepared, or its vectors cannot be had.
    """
    settings = session.ask(peer, "prepare", lengths=BULK_LENGTHS)
    bulk = {"lengths": BULK_LENGTHS}
    session.race("peers", ours, peer, "bulk", bulk, num_left, what="bulk", **facts, **settings)
    asked = {**facts, "what": "query", "tokens": QUERY_TOKENS}
    session.measure("peers", peer, "query", num_left, asked, num_tokens=QUERY_TOKENS)
    farthest = session.farthest(ours, peer, lengths=COMPARED_LENGTHS)
    session.journal.add("peers", **facts, what="1 - cosine to ours, largest", found=farthest)

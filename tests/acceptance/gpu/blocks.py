"""What is measured of the chip and of the engine, block by block."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tests.acceptance.gpu.children import Place
from tests.acceptance.gpu.session import GpuSession
from tests.acceptance.gpu.texts import MIXED
from tests.acceptance.gpu.verdicts import (
    BULK_LENGTHS,
    FEW_QUERIES_PER_S,
    NUM_CLIENTS,
    QUERY_TOKENS,
    ceiling_tflops,
)

LENGTHS: Final = (BULK_LENGTHS, MIXED, "128", "32", "2048", "8192")
"""Of bulk, those first that must not be missed."""
QUERY_LENGTHS: Final = (QUERY_TOKENS, 8, 64, 512)
QUERIES_PER_S: Final = (FEW_QUERIES_PER_S, 100.0)
NUM_PRODUCTS: Final = 4
"""Of a layer, see `texts.linear_shapes`."""


def ceilings(session: GpuSession, model: str) -> None:
    """What the chip can do with products of the model's shapes."""
    chip = Place("chip")
    session.journal.add("ceilings", model=model, **session.ask(chip, "versions"))
    for index in range(NUM_PRODUCTS):
        for result in session.ask(chip, "products", model=model, index=index):
            session.journal.add("ceilings", model=model, **result)
    session.journal.add("ceilings", model=model, **session.ask(chip, "copy"))
    session.measure("ceilings", chip, "sustained", 1, {"model": model}, model=model)


def bulk(session: GpuSession, model: str) -> None:
    """Bulk at fixed and mixed lengths, and FP8 beside bfloat16."""
    longest = session.shape(model).max_seq_tokens
    passed = session.passed[model]
    asked = [
        (precision, name)
        for name in LENGTHS
        for precision in passed
        if name == MIXED or int(name) <= longest
    ]
    for number, (precision, name) in enumerate(asked):
        num_left = len(asked) - number
        place = session.ours(model, precision)
        facts = {"model": model, "precision": precision, "lengths": name}
        ceiling = ceiling_tflops(session.journal.lines, model, precision)
        refine = partial(_shares, ceiling)
        session.measure("bulk", place, "bulk", num_left, facts, refine, lengths=name)
        if number + 1 == len(passed) == 2:
            fp8, bf16 = session.ours(model, "fp8"), session.ours(model, "bf16")
            what = "fp8 over bf16"
            asked_both = {"lengths": BULK_LENGTHS}
            session.race("bulk", fp8, bf16, "bulk", asked_both, num_left, model=model, what=what)


def _shares(ceiling: float | None, found: dict[str, Any]) -> dict[str, Any]:
    """Say what a rate is of what the chip can do, and what it costs."""
    if ceiling is not None:
        found["share_of_ceiling"] = found["tflops"] / ceiling
    if "watts" in found:
        found["joules_per_mtoken"] = found["watts"] / found["tokens_per_s"] * 1e6
    return found


def query(session: GpuSession, model: str) -> None:
    """Single queries: ids to vector, and text to vector through the Embedder."""
    asked = [
        (precision, what, num_tokens)
        for num_tokens in QUERY_LENGTHS
        for precision in session.passed[model]
        for what in (("ids", "text") if num_tokens == QUERY_TOKENS else ("ids",))
    ]
    for number, (precision, what, num_tokens) in enumerate(asked):
        place, num_left = session.ours(model, precision), len(asked) - number
        facts = {"model": model, "precision": precision, "what": what, "tokens": num_tokens}
        call = {"ids": "query", "text": "encode"}[what]
        session.measure("query", place, call, num_left, facts, num_tokens=num_tokens)


def mixed(session: GpuSession, model: str) -> None:
    """Queries beside bulk."""
    precision = session.passed[model][0]
    facts = {"model": model, "precision": precision, "tokens": QUERY_TOKENS}
    place = session.ours(model, precision)
    for number, rate in enumerate(QUERIES_PER_S):
        num_left = 2 * (len(QUERIES_PER_S) - number)  # as long again without queries
        asked: dict[str, Any] = {"queries_per_s": rate, "num_tokens": QUERY_TOKENS}
        session.measure("mixed", place, "mixed", num_left, facts, **asked)


def clients(session: GpuSession, model: str) -> None:
    """Many clients of one Embedder."""
    precision = session.passed[model][0]
    facts = {"model": model, "precision": precision, "tokens": QUERY_TOKENS}
    asked: dict[str, Any] = {"num_clients": NUM_CLIENTS, "num_tokens": QUERY_TOKENS}
    session.measure("clients", session.ours(model, precision), "clients", 1, facts, **asked)


def starts(session: GpuSession, model: str) -> None:
    """The first start of a model, which compiles it, and the second one, each in a new process."""
    folder = session.model_folder(model)
    place = Place("start")
    where = {"folder": str(folder), "cache_dir": str(folder.parent / "cache")}
    for what in ("first", "second"):
        found = session.ask(place, "first_vector", **where)
        age_s = session.children.age_s(place)
        session.children.end(place)
        session.journal.add("start", model=model, what=what, first_vector_s=age_s, **found)

"""The order of events of `embedlib bench --task rerank`: the candidates of one query, sorted."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embedlib.bench.contestants.own import CROSS_ENCODER, INT8_RERANKER, RERANKER
from embedlib.bench.options import ReportLine, RerankOptions
from embedlib.bench.peers import EMBEDLIB, INT8, ST, missing_modules
from embedlib.bench.race import Course, Entry, Race, StartProcess, open_race, start_contestant
from embedlib.bench.result import TOP, RerankFigures, RerankResult, provenance
from embedlib.bench.shapes import find_or_write
from embedlib.errors import EmbedlibError
from embedlib.measuring.process import ContestantFailedError
from embedlib.measuring.spread import Spread
from embedlib.measuring.texts import docstring_pieces, read_lines
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.packages.installing import install_line
from embedlib.vectors.arrays import Vectors

SEEDED_MODEL = "shape:minilm-reranker"
"""In place of a model that is not named."""

DOCUMENT_TOKENS = 200
"""Length of a piece of the documentation."""


def run_rerank(
    options: RerankOptions,
    *,
    machine: Mapping[str, str],
    command: str = "",
    report: ReportLine = lambda _: None,
    start: StartProcess = start_contestant,
) -> RerankResult:
    """Rank the same candidates with embedlib and its peer, taking turns.

    Args:
        options: what to run.
        machine: facts about this machine to keep with the result.
        command: what the user typed, to keep with the result.
        report: called with progress, one line at a time.
        start: starts the process of a contestant.

    Raises:
        EmbedlibError: the model or the candidates cannot be read, a module of the peer is missing,
            or one of the two failed.
    """
    if ST in options.vs and (missing := missing_modules(ST)):
        raise EmbedlibError(f"{', '.join(missing)} missing; {install_line('bench')}")
    with tempfile.TemporaryDirectory(prefix="embedlib-bench-") as scratch:
        folder = find_or_write(options.model or SEEDED_MODEL, options.config, Path(scratch)).path
        documents = _documents(options, folder)
        course = Course(
            folder=folder,
            texts=documents,
            queries=documents[:1],
            config=options.config,
            rounds=options.rounds,
        )
        with open_race(course, Path(scratch), report, start) as race:
            _enter_all(race, options)
            race.take_turns()
            for peer in race.peers:
                if peer.failure is not None:
                    raise ContestantFailedError(peer.name, peer.failure)
            return _result(race, options, provenance(machine, command))


def _enter_all(race: Race, options: RerankOptions) -> None:
    for contestant in (RERANKER, INT8_RERANKER):
        if contestant == RERANKER or INT8 in options.vs:
            # Later starts measure nothing: it would go on beside the peer's turns.
            race.start_cold(contestant)
            race.ours.append(race.enter(contestant))
    if ST in options.vs:
        race.report(f"{ST}: starting and looking for its best batch size")
        race.peers.append(race.enter(CROSS_ENCODER))


def _result(race: Race, options: RerankOptions, circumstances: dict[str, Any]) -> RerankResult:
    num_documents = len(race.course.texts)
    peer = race.peers[0] if race.peers else None
    peer_scores = None if peer is None else race.vectors(peer)
    names = (EMBEDLIB, INT8)
    return RerankResult(
        **circumstances,
        model=options.model or SEEDED_MODEL,
        num_documents=num_documents,
        num_different_documents=len(set(race.course.texts)),
        num_tokens=race.num_tokens,
        num_truncated=race.num_truncated,
        threads=options.config.num_threads,
        rounds=options.rounds,
        versions=race.ours[0].loaded.versions | (peer.loaded.versions if peer is not None else {}),
        ours={
            name: _figures(race, entry, peer_scores)
            for name, entry in zip(names, race.ours, strict=False)
        },
        peer_batch_size=None if peer is None else peer.batch_size,
        peer_documents_per_s=None if peer is None else Spread.of(peer.rates(num_documents)),
    )


def _figures(race: Race, entry: Entry, peer_scores: Vectors | None) -> RerankFigures:
    """Compare one of ours with the peer, whose scores are float32[N]; None: there is no peer."""
    measured = RerankFigures(
        precision=entry.loaded.precision,
        documents_per_s=Spread.of(entry.rates(len(race.course.texts))),
    )
    if peer_scores is None:
        return measured
    scores = race.vectors(entry)
    best, peer_best = (set(_best(each)) for each in (scores, peer_scores))
    return replace(
        measured,
        ratio=Spread.of(race.ratios(entry, race.peers[0])),
        max_difference=float(np.abs(scores - peer_scores).max()),
        top_overlap=len(best & peer_best) / len(peer_best),
    )


def _best(scores: Vectors) -> list[int]:
    """Return the `TOP` best of float32[N], of equal ones the first."""
    best: list[int] = np.argsort(-scores, kind="stable")[:TOP].tolist()
    return best


def _documents(options: RerankOptions, folder: Path) -> list[str]:
    if options.texts_path is not None:
        return read_lines(options.texts_path, options.num_texts)
    tokenizer = load_tokenizer(read_model_files(folder, with_head=True))
    return docstring_pieces(options.num_texts, DOCUMENT_TOKENS, tokenizer)

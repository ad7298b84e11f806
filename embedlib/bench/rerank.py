"""`embedlib bench --task rerank`: candidates of one query, by embedlib and by CrossEncoder."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.bench.contestants import (
    BATCH_SIZES,
    CROSS_ENCODER,
    INT8_RERANKER,
    RERANKER,
    missing_modules,
)
from embedlib.bench.options import INT8, check_counts, check_peers
from embedlib.bench.result import Spread, aba_ratios
from embedlib.bench.run import StartProcess
from embedlib.config import Config
from embedlib.errors import EmbedlibError
from embedlib.measuring.process import ChildProcess, ContestantFailedError, Process
from embedlib.measuring.provenance import checkout_commit, now
from embedlib.measuring.texts import RERANK_QUERY, docstring_pieces, read_lines
from embedlib.models.hub import find_model
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.testing.models.heads import HEADS
from embedlib.testing.models.write import write_variant

PEER = "sentence-transformers"
"""The only one with a reranker that takes the same folders."""
TOP = 10
"""Documents whose place in a ranking is looked at: what a user shows."""

MINILM_SIZE: Mapping[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
"""Source: config.json of cross-encoder/ms-marco-MiniLM-L6-v2."""

SEEDED_MODEL = "a seeded cross-encoder of MiniLM's size"

DOCUMENT_TOKENS = 200
"""Length of a piece of the documentation."""

_PROBE_STRIDE = 8

Scores = NDArray[np.float32]
"""float32[N], one per document."""


@dataclass(frozen=True, kw_only=True)
class RerankOptions:
    """Options of `run_rerank`.

    Raises:
        ConfigError: a value is out of range; the message names the option.
    """

    model: str | None = None
    """A folder, a hub name, or `package:NAME`; None: one of MiniLM's size is written, with weights
    from a generator of numbers."""
    vs: tuple[str, ...] = ()
    """ "sentence-transformers" for its CrossEncoder, "embedlib-int8" for this library in int8."""
    texts_path: Path | None = None
    """A file with one candidate per line; None: pieces of the documentation of Python's library."""
    num_texts: int = 1000
    """Candidates, at most."""
    rounds: int = 5
    """How often the peer takes its turn."""
    config: Config = field(default_factory=Config)
    """How the model is found, and `threads`, for both; the rest is for embedlib."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        check_counts(self, "num_texts", "rounds")
        check_peers(self.vs, (PEER, INT8))


@dataclass(frozen=True, kw_only=True)
class RerankFigures:
    """What was found of this library in one precision; None: there is no peer."""

    documents_per_s: Spread
    ratio: Spread | None
    """This rate divided by the peer's, turn by turn."""
    max_difference: float | None
    """Largest difference of any score from the peer's."""
    top_overlap: float | None
    """Share of the peer's `TOP` best documents that are among the best here."""


@dataclass(frozen=True, kw_only=True)
class RerankResult:
    """What was found."""

    date: str
    command: str
    embedlib_version: str
    commit: str | None
    machine: Mapping[str, str]
    model: str
    num_documents: int
    num_tokens: int
    """Of all pairs, special tokens included, as embedlib counts them."""
    num_truncated: int
    threads: int
    rounds: int
    versions: Mapping[str, str]
    ours: Mapping[str, RerankFigures]
    """By name: "embedlib" computes in float32."""
    peer_batch_size: int | None
    """The best one found; None: there is no peer."""
    peer_documents_per_s: Spread | None

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dump`."""
        return dataclasses.asdict(self)


def run_rerank(
    options: RerankOptions,
    *,
    machine: Mapping[str, str],
    embedlib_version: str,
    command: str = "",
    report: Callable[[str], None] = lambda _: None,
    start: StartProcess = ChildProcess,
) -> RerankResult:
    """Rank the same candidates with embedlib and its peer, taking turns.

    Args:
        options: what to run.
        machine: facts about this machine to keep with the result.
        embedlib_version: what to keep as the version measured.
        command: what the user typed, to keep with the result.
        report: is told about progress, one line at a time.
        start: starts the process of a contestant.

    Raises:
        EmbedlibError: the model or the candidates cannot be read, a module of the peer is missing,
            or one of the two failed.
    """
    if PEER in options.vs and (missing := missing_modules(PEER)):
        raise EmbedlibError(f'{", ".join(missing)} missing; pip install "embedlib[bench]"')
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embedlib-bench-")))
        folder = _folder(options, scratch)
        documents = _documents(options, folder)
        threads = options.config.num_threads
        budget = {"max_batch_tokens": options.config.max_batch_tokens}
        names = {RERANKER: "embedlib", INT8_RERANKER: INT8}
        ours = {}
        peer = None
        try:
            for contestant, name in names.items():
                if name != INT8 or INT8 in options.vs:
                    report(f"{name}: starting")
                    ours[name] = _Entry(
                        contestant, stack, start, threads, folder, scratch, budget, documents
                    )
                    before = ours[name].stats()
                    ours[name].rank()
                    after = ours[name].stats()
            if PEER in options.vs:
                report(f"{PEER}: starting and looking for its best batch size")
                peer = _Entry(CROSS_ENCODER, stack, start, threads, folder, scratch, {}, documents)
                peer.find_batch_size()
                peer.rank()
            rates = {name: [entry.rank()] for name, entry in ours.items()}
            peer_rates = []
            for number in range(1, options.rounds + 1):
                report(f"round {number} of {options.rounds}")
                if peer is not None:
                    peer_rates.append(peer.rank())
                for name, entry in ours.items():
                    rates[name].append(entry.rank())
            peer_scores = None if peer is None else peer.scores()
            figures = {
                name: _figures(rates[name], entry.scores(), peer_rates, peer_scores)
                for name, entry in ours.items()
            }
        except ContestantFailedError as error:
            raise EmbedlibError(str(error)) from error
        versions = ours["embedlib"].versions | (peer.versions if peer is not None else {})
        return RerankResult(
            date=now(),
            command=command,
            embedlib_version=embedlib_version,
            commit=checkout_commit(),
            machine=dict(machine),
            model=options.model or SEEDED_MODEL,
            num_documents=len(documents),
            num_tokens=int(after["num_tokens"] - before["num_tokens"]),
            num_truncated=int(after["num_truncated"] - before["num_truncated"]),
            threads=threads,
            rounds=options.rounds,
            versions=versions,
            ours=figures,
            peer_batch_size=None if peer is None else peer.batch_size,
            peer_documents_per_s=None if peer is None else Spread.of(peer_rates),
        )


def _figures(
    rates: list[float], scores: Scores, peer_rates: list[float], peer_scores: Scores | None
) -> RerankFigures:
    if peer_scores is None:
        return RerankFigures(
            documents_per_s=Spread.of(rates), ratio=None, max_difference=None, top_overlap=None
        )
    best, peer_best = (set(np.argsort(-each)[:TOP].tolist()) for each in (scores, peer_scores))
    return RerankFigures(
        documents_per_s=Spread.of(rates),
        ratio=Spread.of(aba_ratios(rates, peer_rates)),
        max_difference=float(np.abs(scores - peer_scores).max()),
        top_overlap=len(best & peer_best) / len(peer_best),
    )


def _folder(options: RerankOptions, scratch: Path) -> Path:
    if options.model is None:
        tiny = HEADS["bert-cross-encoder"]
        row = replace(
            tiny,
            config={**tiny.config, **MINILM_SIZE},
            tokenizer_config=tiny.tokenizer_config | {"model_max_length": 512},
        )
        return write_variant(scratch / "model", "minilm-cross-encoder", row)
    return find_model(options.model, options.config).path


def _documents(options: RerankOptions, folder: Path) -> list[str]:
    if options.texts_path is not None:
        return read_lines(options.texts_path, options.num_texts)
    tokenizer = load_tokenizer(read_model_files(folder, with_head=True))
    return docstring_pieces(options.num_texts, DOCUMENT_TOKENS, tokenizer)


class _Entry:
    """A contestant in its process."""

    def __init__(
        self,
        name: str,
        stack: ExitStack,
        start: StartProcess,
        threads: int,
        folder: Path,
        scratch: Path,
        options: dict[str, Any],
        documents: list[str],
    ) -> None:
        self._process: Process = stack.enter_context(start(name, threads, None))
        self._documents = documents
        self._path = scratch / f"{name}.npy"
        self.batch_size: int | None = None
        cache = scratch / name
        cache.mkdir()
        loaded = self._process.call(
            "load",
            folder=str(folder),
            cache_dir=str(cache),
            threads=threads,
            options=options,
            query=documents[0],
        )
        self.versions: dict[str, str] = loaded["versions"]
        self._process.call("set_texts", texts=documents, queries=[RERANK_QUERY])

    def find_batch_size(self) -> None:
        """Try every size twice, up and down, on a part of the candidates; keep the best."""
        seconds: dict[int, float] = {}
        for size in (BATCH_SIZES[0], *BATCH_SIZES, *reversed(BATCH_SIZES)):
            measured = self._process.call("bulk", batch_size=size, stride=_PROBE_STRIDE)
            seconds[size] = min(measured, seconds.get(size, measured))
        self.batch_size = min(seconds, key=seconds.__getitem__)

    def rank(self) -> float:
        """Return documents per second."""
        seconds: float = self._process.call("bulk", batch_size=self.batch_size)
        return len(self._documents) / seconds

    def stats(self) -> dict[str, float]:
        """Return what it counted."""
        counts: dict[str, float] = self._process.call("stats")
        return counts

    def scores(self) -> Scores:
        """Return the scores of the last turn, float32[N]."""
        self._process.call("save_vectors", path=str(self._path))
        scores: Scores = np.load(self._path)
        return scores


def render_rerank(result: RerankResult) -> str:
    """Return the result as a Markdown table."""
    rows = [("pairs, mean tokens", f"{result.num_tokens / result.num_documents:.0f}")]
    for name, figures in result.ours.items():
        rows.append((f"{name}, documents/s", _spread(figures.documents_per_s, "")))
    if result.peer_documents_per_s is not None:
        rows += [
            (f"{PEER} CrossEncoder, documents/s", _spread(result.peer_documents_per_s, "")),
            ("its batch size, the best of " + str(list(BATCH_SIZES)), f"{result.peer_batch_size}"),
        ]
    for name, figures in result.ours.items():
        if figures.ratio is not None:
            rows += [
                (f"{name}, times as fast", _spread(figures.ratio, "x")),
                (f"{name}, largest difference of a score", f"{figures.max_difference:.1e}"),
                (f"{name}, its best {TOP} among the peer's", f"{figures.top_overlap:.0%}"),
            ]
    versions = {"embedlib": result.embedlib_version, **result.versions}
    known = {
        "command": f"`{result.command}`" if result.command else "",
        "commit": result.commit,
        "date": result.date,
        **result.machine,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    rows += [(name, value) for name, value in known.items() if value]
    cut = f", {result.num_truncated:,} cut" if result.num_truncated else ""
    heading = (
        f"{result.model}, threads: {result.threads}, rounds: {result.rounds}; "
        f"{result.num_documents:,} documents of one query{cut}"
    )
    cells = [(name, value.replace("|", "\\|")) for name, value in rows]
    lines = ["| rerank | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in cells)]
    return "\n".join([heading, "", *lines])


def _spread(spread: Spread, unit: str) -> str:
    digits = 2 if unit else 0
    low, median, high = (
        f"{value:,.{digits}f}" for value in (spread.min, spread.median, spread.max)
    )
    return f"{median}{unit} ({low} to {high})"

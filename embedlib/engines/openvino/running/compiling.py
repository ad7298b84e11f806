"""Compiles a graph, or imports what an earlier process compiled, after a trial.

A compiled model that is kept on disk holds the weights in the form that the CPU plugin reads, and
is mapped once for all compiled models of an engine. So the first process, too, uses what it has
kept, and frees the graph and the model's own weights: both starts need the same memory.

Of a large model only the graph is kept, as the plugin has changed it, which takes it most of the
time, and matrices that have no place in the model's file: those in int8, which the plugin forgets,
and copied columns. Other weights are read from that file; all are packed at every start.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.engines.machine import Machine
from embedlib.engines.openvino.core import CAPACITY_VARIABLE
from embedlib.engines.openvino.graphs.stages import Request, Stages
from embedlib.engines.openvino.kept.model_cache import CacheEntry, ModelCache, WeightsFile
from embedlib.engines.openvino.kept.weightless import WITHOUT_WEIGHTS, refer
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.pages import MappedFile, let_all_go, letting_go, mapped_by
from embedlib.engines.openvino.running.inputs import infer_batch, last_line
from embedlib.engines.openvino.running.kept_prefixes import KeptPrefixes
from embedlib.engines.openvino.sizes.padding import MIN_ROWS
from embedlib.models.spec import ModelSpec
from embedlib.models.weights.mapped import mapped_files
from embedlib.models.weights.tensor_roles import linear_weights
from embedlib.threads.starting import WorkerPool, starting_threads
from embedlib.version import __version__

Settings = Mapping[str, Any]
"""Properties of a compiled model."""
Build = Callable[[], tuple[Sequence[ov.Model], Any]]
"""Returns the stages of a graph, and the weights that they read in place."""

MAX_DIFFERENCE: Final = 1e-3
"""Between the vectors of a trial and those when the model was compiled, over the largest number.
Same CPU, same library, same threads: they are equal; what this must find is far off."""
TRIAL_PRODUCTS: Final = 10_000_000_000
"""Multiplications of a trial: some tenths of a second."""
TRIAL_TOKENS: Final = (8, 32)
"""The fewest and the most tokens of the longer sequence of a trial. The library may pack an
int8 matrix a second time for more than 80 rows; two sequences of 32 are fewer. Source:
docs/measurements/memory.md, packings."""
COMPILING_THREADS: Final = 2
"""OpenVINO changes a graph on one core: a second for eight layers. Source:
docs/measurements/starts.md; each graph at once has its own copy in memory."""
_ENGINE: Final = Path(__file__).parents[1]
"""The folder of the engine's source."""
SWITCHES: Final = ("ONEDNN_", "DNNL_", "OV_")
"""Variables of the environment that switch instructions or kernels of the libraries off."""


@dataclass
class Loaded:
    """Compiled graphs, one for each of the settings, and what they read in place."""

    models: list[Stages]
    reads: list[Any]
    """Freed after the models, in this order."""
    mapped_files: Sequence[MappedFile] = ()
    """Of a large model; their pages are let go while matrices are packed."""


def load_models(
    core: ov.Core,
    spec: ModelSpec,
    build: Build,
    settings: Sequence[Settings],
    cache: ModelCache | None,
    graph_options: Mapping[str, object],
    *,
    mark: Callable[[], None],
    is_large: bool,
    copied_bytes: int,
) -> Loaded:
    """Return compiled models of one graph, from the cache if it has them.

    The last one is loaded and tried first: the library then starts threads that all models share.

    Args:
        core: OpenVINO's, with its CPU plugin loaded.
        spec: the model.
        build: returns the stages of the graph, only one where there is a cache, and the weights
            that they read in place.
        settings: the properties of each compiled model.
        cache: where they are kept; None: nowhere. Of a large model the graph alone is.
        graph_options: what the graph depends on, besides the spec and the weights; JSON values.
        mark: called on the threads that load a model which is not the last.
        is_large: whether pages of the weights are let go while they are packed.
        copied_bytes: of weights that the graph has copies of.

    Raises:
        RuntimeError: OpenVINO could not compile the graph.
    """
    batch = trial_batch(spec, is_large=is_large)
    loader = _Loader(core, build, settings, batch, mark, is_large, copied_bytes)
    if cache is None:
        return loader.compile()
    facts = _facts(core, spec, settings) | {"graph": dict(graph_options)}
    with cache.entry(facts) as entry:
        if entry is None:
            return loader.compile()
        kept = loader.kept(entry, cache.file)
        if kept is not None:
            entry.forget_deaths()
            return kept
        if cache.file is not None:
            return loader.compile(entry)
        return loader.keep(entry) or loader.kept(entry) or loader.compile()


def trial_batch(spec: ModelSpec, *, is_large: bool = False) -> Batch:
    """Return the batch that a compiled model is tried with: one long sequence and a short one.

    For a large model one sequence, as short as its batches are.
    """
    num_weights = max(1, linear_weights(spec.encoder))
    fewest, most = TRIAL_TOKENS
    long = min(max(TRIAL_PRODUCTS // (2 * num_weights), fewest), most, spec.max_seq_tokens)
    lengths = [min(MIN_ROWS, long)] if is_large else [long, max(1, long // 4)]
    ids = np.arange(sum(lengths), dtype=np.int64) * 7919 % spec.encoder.vocab_size
    seq_lens = np.array(lengths, np.int32)
    return Batch(
        lane=Lane.QUERY,
        token_ids=ids.astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths], dtype=np.int32),
        num_prompt_tokens=np.zeros(len(lengths), np.int32),
        num_type0_tokens=seq_lens,
    )


@dataclass(frozen=True)
class _Loader:
    """What `load_models` is given, and the batch of a trial."""

    core: ov.Core
    build: Build
    settings: Sequence[Settings]
    batch: Batch
    mark: Callable[[], None]
    is_large: bool
    copied_bytes: int

    def compile(self, entry: CacheEntry | None = None) -> Loaded:
        """Compile a graph for each of the settings; keep that of a large model in `entry`.

        All models of a large one are tried: what is packed at first use is packed while pages are
        let go.
        """
        graphs, weights = self.build()
        files = mapped_files(weights) if self.is_large else []
        known = refer(self.core, graphs, files[0], self.copied_bytes) if entry and files else None
        extra = {} if known is None else WITHOUT_WEIGHTS
        models: list[Stages] = []
        with letting_go(files):
            for number, one in enumerate(reversed(self.settings)):
                compiled = partial(self._compiled, {**one, **extra})
                with self._threads(is_marked=number > 0) as threads:
                    models.insert(0, list(threads.map(compiled, graphs)))
                if files or not number:
                    vectors = _try(models[0], self.batch)
        if entry is not None and known is not None and np.isfinite(vectors).all():
            with letting_go(files):  # int8 matrices are read once more
                entry.write([stage.export_model for stage in models[0]], vectors)
        return Loaded(models, [*graphs, weights, known], files)

    def keep(self, entry: CacheEntry) -> Loaded | None:
        """Compile the model that queries use and keep it; if that fails, return all.

        None: it was kept, and can be imported.
        """
        (graph,), weights = self.build()
        compiled = self._compiled(self.settings[-1], graph)
        vectors = _try([compiled], self.batch)
        if np.isfinite(vectors).all() and entry.write([compiled.export_model], vectors):
            return None
        with self._threads(is_marked=True) as threads:
            others = list(threads.map(lambda one: self._compiled(one, graph), self.settings[:-1]))
        return Loaded([[one] for one in (*others, compiled)], [graph, weights])

    def kept(self, entry: CacheEntry, file: WeightsFile | None = None) -> Loaded | None:
        """Return what is kept; None if there is nothing, or if it does not stand its trial.

        Args:
            entry: where it is kept.
            file: that of the weights, for a large model.
        """
        kept = entry.kept()
        if kept is None:
            return None
        try:
            with entry.trying(), starting_threads():
                # Writable for Python's sake: the pages are private and nobody writes.
                content = np.memmap(entry.blob, np.uint8, mode="c")
                parts = [
                    ov.Tensor(content[start:end], shared_memory=True) for start, end in kept.parts
                ]
                models: list[Stages] = []
                files: list[MappedFile] = []
                blobs = [content] if file else []
                tried = []
                for number, one in enumerate(reversed(self.settings)):
                    with self._threads(is_marked=number > 0) as threads:
                        stages, mappings = _import_stages(self.core, parts, one, file, threads)
                    models.insert(0, stages)
                    files += mappings
                    let_all_go(blobs)
                    # Only the one that queries use, unless pages must be let go: it would pack its
                    # weights at the first query anyway.
                    if file or not number:
                        with letting_go([*files, *blobs]):
                            tried.append(_try(stages, self.batch))
        except (RuntimeError, OSError, ValueError) as error:
            entry.drop(f"it cannot be loaded: {last_line(error)}")
            return None
        if not all(_agree(vectors, kept.vectors) for vectors in tried):
            entry.drop("its vectors are not those of the day when it was compiled")
            return None
        entry.use()
        logging.getLogger(__name__).info("the compiled model in %s is used", entry.path)
        return Loaded(models, [*parts, content], [*files, *blobs])

    def _compiled(self, settings: Settings, graph: ov.Model) -> ov.CompiledModel:
        return self.core.compile_model(graph, "CPU", dict(settings))

    def _threads(self, *, is_marked: bool) -> WorkerPool:
        mark = self.mark if is_marked else None
        return WorkerPool(COMPILING_THREADS, "embedlib-compile", initializer=mark)


def _import_stages(
    core: ov.Core,
    parts: Sequence[ov.Tensor],
    settings: Settings,
    file: WeightsFile | None,
    threads: WorkerPool,
) -> tuple[Stages, list[MappedFile]]:
    """Return the stages of a compiled model, and where the library has mapped the weights' file."""
    known = dict(settings)
    if file is not None:
        known |= {**WITHOUT_WEIGHTS, "WEIGHTS_PATH": str(file.path)}
    # The pages of a stage stay in memory while it is imported.
    at_once = 1 if file is not None and file.is_packed_at_once else COMPILING_THREADS
    stages: list[ov.CompiledModel] = []
    files: list[MappedFile] = []

    def load() -> list[ov.CompiledModel]:
        some = parts[len(stages) : len(stages) + at_once]
        return list(threads.map(lambda part: core.import_model(part, "CPU", known), some))

    while len(stages) < len(parts):
        new, mappings = mapped_by(file.path, load) if file else (load(), [])
        let_all_go(mappings)
        stages += new
        files += mappings
    return stages, files


def _try(stages: Stages, batch: Batch) -> NDArray[np.float32]:
    request = Request(stages)  # owns the memory of the vectors
    nothing = KeptPrefixes.of(stages).none()
    return infer_batch(request, batch, nothing.arrays, MIN_ROWS).copy()


def _agree(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    if vectors.shape != expected.shape:
        return False
    largest = float(np.abs(expected).max())
    return bool((np.abs(vectors - expected) <= MAX_DIFFERENCE * largest).all())  # NaN is False


def _facts(core: ov.Core, spec: ModelSpec, settings: Sequence[Settings]) -> dict[str, object]:
    """Return everything that a compiled model depends on, besides the weights."""
    shape = replace(spec, prompts={}, default_prompt_name=None, max_seq_tokens_source="")
    switches = {name: value for name, value in os.environ.items() if name.startswith(SWITCHES)}
    switches.pop(CAPACITY_VARIABLE, None)
    return {
        "spec": repr(shape),
        "settings": [{name: str(value) for name, value in one.items()} for one in settings],
        "openvino": ov.get_version(),
        "cpu": [core.get_property("CPU", "FULL_DEVICE_NAME"), *Machine().cpu_identity()],
        "switches": switches,
        "embedlib": [__version__, _source_digest()],
    }


def _source_digest() -> str:
    """Return a digest of the source: a version under development builds graphs that change."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(_ENGINE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()

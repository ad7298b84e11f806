"""Converts the pickled weights of a model folder: which files, into what, and where.

`convert_folder` starts a process of its own for everything that reads a pickle, see `worker`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copy2
from typing import Any, Final

from embedlib.errors import ConfigError, ModelNotFoundError, ModelWeightsError, shown
from embedlib.models.compiled.checkpoint import write_json
from embedlib.models.compiled.new_folder import new_folder, place_lock
from embedlib.models.new_file import new_file, not_written, part_of
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.model_file import has_file, name_in
from embedlib.models.weights.token_heads import HEAD_STEMS
from embedlib.models.weights.weight_files import (
    INDEX_NAME,
    PICKLE_INDEX,
    PICKLE_NAME,
    PICKLE_SUFFIXES,
    WEIGHTS_NAME,
    other_pickles,
    shard_names,
    weight_files,
)

MAX_DEPTH: Final = 3
"""Folders in one another: a module has one of its own."""

START: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from embedlib.models.converting.worker import main; main()"
)
"""Runs the other process with the import path of this one."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that was converted."""

    pickle: str
    """Names are relative to the folder."""
    weights: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What was done."""

    folder: Path
    """Where the safetensors are."""
    written: tuple[Written, ...]
    kept: tuple[str, ...]
    """Pickles whose safetensors were there already."""
    left_out: tuple[str, ...]
    """Pickles that are no weights of the model, such as the state of an optimizer."""
    confined_by: str
    """What refused the process sockets: seccomp, or Python."""


@dataclass(frozen=True)
class _Plan:
    pairs: list[tuple[Path, Path]]
    """Pickle and weights, relative to the folder."""
    indexes: dict[Path, dict[str, Any]]
    kept: list[str]
    left_out: list[str]


def convert_folder(
    folder: Path, out: Path | None = None, report: Callable[[int, int], None] | None = None
) -> Conversion:
    """Write the weights of a model folder as safetensors.

    Args:
        folder: a model folder with pickled weights.
        out: a new folder with a copy of everything but the pickles; None: the new files are written
            beside the pickles.
        report: called with the bytes written and those of all pickles.

    Raises:
        ModelNotFoundError: there is no such folder, or nothing in it to convert.
        ConfigError: `out` is there already.
        ModelWeightsError: a pickle is damaged or missing, or holds anything but tensors; or a file
            cannot be written.
    """
    if not folder.is_dir():
        raise ModelNotFoundError(f"{shown(str(folder))} is no folder; give that of a model")
    folder = folder.resolve()  # locks and parts stand beside a name, which "." has not
    plan = _plan(folder)
    if not plan.pairs:
        raise ModelNotFoundError(f"{folder}: nothing to convert, {_why_nothing(plan)}")
    if out is not None and os.path.exists(out):
        raise ConfigError(f"{out}: is there already; give a new folder")
    try:
        if out is None:
            # In the folder: the one around it may be read-only.
            with place_lock(folder / WEIGHTS_NAME) as lock:
                return _run(folder, folder, plan, lock, report)
        out = out.resolve()
        with place_lock(out) as lock, new_folder(out) as part:
            _copy(folder, part, plan)
            done = _run(folder, part, plan, lock, report)
    except OSError as error:
        remedy = "; give another folder with --out" if out is None else ""
        raise ModelWeightsError(f"{not_written(out or folder, error)}{remedy}") from error
    return replace(done, folder=out)


def _why_nothing(plan: _Plan) -> str:
    if plan.kept:
        return "safetensors for all of them are there; load the folder as it is"
    if plan.left_out:
        return other_pickles(plan.left_out)
    return "there is no pickle; load the folder as it is"


def _plan(folder: Path) -> _Plan:
    """Find the pickles, and what becomes of each."""
    plan = _Plan([], {}, [], [])
    for directory in _directories(folder):
        here = directory.relative_to(folder)
        shards: list[str] = []
        if has_file(directory / PICKLE_NAME, folder):
            has_weights = _has_weights(directory, folder)
            _add(plan, here / PICKLE_NAME, here / WEIGHTS_NAME, has_weights)
        elif has_file(directory / PICKLE_INDEX, folder):
            shards = _add_shards(plan, folder, directory)
        for stem in HEAD_STEMS.values():  # NAME.pt beside config.json
            if has_file(directory / f"{stem}.pt", folder):
                has_weights = has_file(directory / f"{stem}.safetensors", folder)
                _add(plan, here / f"{stem}.pt", here / f"{stem}.safetensors", has_weights)
        known = {PICKLE_NAME, *shards, *(f"{stem}.pt" for stem in HEAD_STEMS.values())}
        plan.left_out.extend(
            name_in(path, folder)
            for path in sorted(directory.iterdir())
            if path.suffix in PICKLE_SUFFIXES and path.name not in known
        )
    return plan


def _add(plan: _Plan, pickle: Path, weights: Path, has_weights: bool) -> None:
    if has_weights:
        plan.kept.append(pickle.as_posix())
    else:
        plan.pairs.append((pickle, weights))


def _has_weights(directory: Path, folder: Path) -> bool:
    """Return whether the safetensors of a model or module are there.

    Raises:
        ModelWeightsError: only some of those that an index names are.
    """
    if not any(has_file(directory / name, folder) for name in (WEIGHTS_NAME, INDEX_NAME)):
        return False
    for path in weight_files(directory, folder):
        if not has_file(path, folder):
            raise ModelWeightsError(
                f"{name_in(path, folder)}: is missing, which {INDEX_NAME} names; download it, or "
                "remove the index to convert the pickles"
            )
    return True


def _add_shards(plan: _Plan, folder: Path, directory: Path) -> list[str]:
    """Add the files that an index names, and the index of what they become; return their names."""
    index = JsonObject.load(directory / PICKLE_INDEX, folder)
    names = shard_names(index)
    here = directory.relative_to(folder)
    if _has_weights(directory, folder):
        plan.kept.append(name_in(directory / PICKLE_INDEX, folder))
        return names
    for name in names:
        if not has_file(directory / name, folder):
            raise ModelWeightsError(
                f"{name_in(directory / name, folder)}: is missing, which {PICKLE_INDEX} names; "
                "download it"
            )
    table = index.child("weight_map").values
    renamed = {
        name: f"model-{number:05}-of-{len(names):05}.safetensors"
        for number, name in enumerate(names, 1)
    }
    plan.pairs.extend((here / name, here / renamed[name]) for name in names)
    plan.indexes[here / INDEX_NAME] = {
        "metadata": dict(index.child("metadata").values),
        "weight_map": {key: renamed[name] for key, name in sorted(table.items())},
    }
    return names


def _directories(folder: Path) -> Iterator[Path]:
    """Yield the folder and those in it; none that a link leads to, and none that is hidden."""
    yield folder
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_plain = len(parts) <= MAX_DEPTH and not any(part.startswith(".") for part in parts)
        if is_plain and path.is_dir() and not path.is_symlink():
            yield path


def _copy(folder: Path, target: Path, plan: _Plan) -> None:
    """Copy what is neither a pickle nor the index of some, and not hidden."""
    left = {folder / pickle for pickle, _ in plan.pairs}
    for directory in _directories(folder):
        copied = target / directory.relative_to(folder)
        copied.mkdir(exist_ok=True)
        for path in directory.iterdir():
            is_pickle = path.suffix in PICKLE_SUFFIXES or path.name == PICKLE_INDEX
            is_hidden = path.name.startswith(".")
            if path.is_file() and path not in left and not is_pickle and not is_hidden:
                copy2(path, copied / path.name)


def _run(
    folder: Path, target: Path, plan: _Plan, lock: int, report: Callable[[int, int], None] | None
) -> Conversion:
    """Let the other process write the files; then write the indexes, which make them a whole."""
    task = {
        "folder": str(folder),
        "target": str(target),
        "pairs": [[str(pickle), str(weights)] for pickle, weights in plan.pairs],
    }
    total = sum((folder / pickle).stat().st_size for pickle, _ in plan.pairs)
    written: list[Written] = []
    confined_by = ""
    with _worker(task, lock) as process:
        assert process.stdout is not None, "it is a pipe"
        for answer in map(json.loads, process.stdout):
            if "error" in answer:
                raise ModelWeightsError(str(answer["error"]))
            if "confined_by" in answer:
                confined_by = answer["confined_by"]
            elif "bytes" in answer:
                if report is not None:
                    report(int(answer["bytes"]), total)
            else:
                written.append(Written(**answer))
        status = process.wait()
    if len(written) != len(plan.pairs):
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        # The kernel sends the signal 9 where memory runs out.
        way = "free memory" if status == -signal.SIGKILL else "check the files"
        again = "run it again for the others" if target == folder and written else "run it again"
        raise ModelWeightsError(
            f"{folder}: the process that converts {how} after {len(written)} of "
            f"{len(plan.pairs)} files; {way} and {again}"
        )
    for path, index in plan.indexes.items():
        shards = {str(path.with_name(name)) for name in index["weight_map"].values()}
        num_bytes = sum(item.num_bytes for item in written if item.weights in shards)
        index["metadata"] |= {"total_size": num_bytes}
        with new_file(target / path) as part:
            write_json(part, index)
    return Conversion(
        folder=target,
        written=tuple(written),
        kept=tuple(plan.kept),
        left_out=tuple(plan.left_out),
        confined_by=confined_by,
    )


@contextmanager
def _worker(task: dict[str, Any], lock: int) -> Iterator[subprocess.Popen[str]]:
    """Run the other process; yield it. Its answers are lines of JSON, which end with it.

    It holds the lock as well: where this process is killed, nobody else writes the files before
    the other one has ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", START, *(path for path in sys.path if isinstance(path, str))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C is for this process, which ends the other one
    )
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    try:
        with suppress(BrokenPipeError):  # it has ended already, and its status says how
            process.stdin.write(json.dumps(task))
            process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for _, weights in task["pairs"]:  # it had no time to remove what it was writing
            with suppress(OSError):
                part_of(Path(task["target"], weights)).unlink()

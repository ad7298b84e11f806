"""A copy in float32 of weights that a file stores in 16 bits, for CPUs that compute it faster.

Of OpenVINO's two libraries oneDNN alone multiplies a matrix that is stored in 16 bits. With AVX2
and no AVX-512 the other one, MLAS, takes a fifth to a quarter less time. So there the weights are
written once, into the cache of compiled models; without room for that only speed is lost:

    float32-KEY/weights.safetensors    by role; KEY stands for the model's files
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine, has_avx2_alone
from embedlib.errors import ModelError, ModelWeightsError
from embedlib.memory import gib
from embedlib.models.compiled.jobs import run_jobs
from embedlib.models.compiled.new_folder import new_folder, place_lock
from embedlib.models.compiled.role_file import RoleFile, tensors_to_store
from embedlib.models.compiled.tensor_blocks import (
    WrittenTensor,
    as_numbers,
    create_file,
    read_blocks,
)
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.model_file import list_files
from embedlib.models.weights.file_hashes import ReportBytes, file_state
from embedlib.models.weights.load import Weights
from embedlib.models.weights.mapped import mapped_paths
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors
from embedlib.progress import Reading, telling

FORMAT: Final = 1
"""Of these files."""
NAME: Final = "weights.safetensors"
FREE_SHARE: Final = 0.1
"""Of the free disk that a copy takes at most."""
GATHERED: Final = frozenset({"tokens"})
"""Roles of which rows are looked up and nothing is multiplied: they stay as they are stored."""


def stores_16_bits(folder: Path) -> bool:
    """Return whether a folder stores weights in 16 bits."""
    try:
        return any(
            tensor.dtype in ("F16", "BF16")
            for path in list_files(folder, "*.safetensors")
            for tensor in list_tensors(path, folder).values()
        )
    except ModelError:
        return False  # the engine raises it again, when it loads the weights


def pays(precision: ChosenPrecision) -> bool:
    """Return whether a copy of 16-bit weights pays on this machine.

    Source: docs/benchmarks.md, 16-bit files on AVX2 alone. CPUs of Intel were not measured.
    """
    if precision.name != "float32":
        return False
    machine = Machine()
    is_intel = "GenuineIntel" in machine.cpu_identity()
    return has_avx2_alone(machine.cpu_features()) and not is_intel


def float32_copy(
    files: ModelFiles, weights: Weights, place: Path, config: Config
) -> RoleFile | None:
    """Return the copy of a model's weights, which is written if there is none.

    Args:
        files: the model.
        weights: its own; those that are computed at load are not in the copy.
        place: the folder of the copies of all models.
        config: says whether a copy may be written, and how many cores there are.

    Returns:
        None: there is none, and it may not be written, or cannot be, as the log says; or it was
        damaged and removed.

    Raises:
        ModelWeightsError: the weights cannot be read.
    """
    logger = logging.getLogger(__name__)
    stored = tensors_to_store(weights)
    folder = place / f"float32-{_key(weights, stored)}"
    name = files.hub_name or files.folder.name
    try:
        if not folder.exists():
            if not config.prepare:
                return None
            with place_lock(folder):
                if not folder.exists():  # another process may have written it meanwhile
                    logger.info("writing the weights of %s in float32 to %s", name, folder)
                    _write(stored, folder, config.num_threads, name)
        with suppress(OSError):  # a cache that cannot be written is used all the same
            os.utime(folder)  # the cache of compiled models removes what nobody uses
    except OSError as error:
        logger.info("%s is computed from its 16-bit weights, more slowly: %s", name, error)
        return None
    try:
        return RoleFile(folder / NAME)
    except (ModelWeightsError, OSError) as error:
        logger.warning("the copy in %s is removed, it is damaged: %s", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _key(weights: Weights, stored: Mapping[str, StoredTensor]) -> str:
    """Return what stands for the content of a copy: the states of the files, and who is where."""
    states = [file_state(path) for path in mapped_paths(weights)]
    places = {role: asdict(tensor) for role, tensor in stored.items()}
    known = json.dumps([FORMAT, states, places], default=str, sort_keys=True)
    return hashlib.blake2b(known.encode(), digest_size=16).hexdigest()


def _write(stored: Mapping[str, StoredTensor], folder: Path, threads: int, name: str) -> None:
    """Write the file, several tensors at a time.

    Raises:
        OSError: it cannot be written, or would take too much of the disk.
    """
    kinds = {
        role: (tensor.dtype if role in GATHERED else "F32", tensor.shape)
        for role, tensor in stored.items()
    }
    with new_folder(folder) as part:
        written = create_file(part / NAME, kinds)
        num_bytes = sum(place.num_bytes for place in written.values())
        free = shutil.disk_usage(part).free
        if num_bytes > FREE_SHARE * free:
            raise OSError(f"a copy takes {gib(num_bytes)}, and {gib(free)} of the disk are free")
        done = 0

        def count(num_read: int) -> None:
            nonlocal done
            done += num_read

        total = sum(os.path.getsize(path) for path in {tensor.path for tensor in stored.values()})
        line = f"Preparing {name} for this machine, once"
        with telling(line, "B", lambda: Reading(done=done, total=total)):
            jobs = [
                partial(_widen, tensor, written[role], part / NAME)
                for role, tensor in stored.items()
            ]
            run_jobs(jobs, threads, count)


def _widen(tensor: StoredTensor, place: WrittenTensor, path: Path, report: ReportBytes) -> None:
    """Write one tensor to its place in the new file."""
    with tensor.path.open("rb") as reader, path.open("r+b") as writer:
        writer.seek(place.start)
        for block in read_blocks(tensor, reader, report):
            is_kept = place.dtype == tensor.dtype and not tensor.added
            numbers = block if is_kept else as_numbers(block, tensor).astype("<f4", copy=False)
            writer.write(numbers.data)
        writer.flush()
        # Else what is not on the disk yet could fill the memory of a container.
        os.fsync(writer.fileno())

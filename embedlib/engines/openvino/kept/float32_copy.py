"""Weights that a file stores in 16 bits as float32, for CPUs that compute them faster so.

Of OpenVINO's two libraries oneDNN alone multiplies a matrix that is stored in 16 bits. With AVX2
and no AVX-512 the other one, MLAS, takes a fifth to a quarter less time. So there the weights of a
small model are widened in memory, since its compiled model is kept with them. Those of a large one
are written once, into the cache of compiled models; without room for that only speed is lost:

    float32-KEY/weights.safetensors    by role; KEY stands for the content of the model's files
    float32-KEY/source.json            the paths of those files
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.machine import Machine, has_avx2_alone
from embedlib.engines.openvino.kept.model_cache import remove_unused
from embedlib.errors import ModelError, ModelWeightsError
from embedlib.models.compiled.engine_folder import file_hashes
from embedlib.models.compiled.jobs import run_jobs
from embedlib.models.compiled.new_folder import new_folder, place_lock
from embedlib.models.compiled.role_file import RoleFile, tensors_to_store
from embedlib.models.compiled.tensor_blocks import as_numbers, create_file, read_blocks
from embedlib.models.reading.files import ModelFiles
from embedlib.models.weights.file_hashes import ReportBytes
from embedlib.models.weights.load import Weights
from embedlib.models.weights.mapped import mapped_paths
from embedlib.models.weights.safetensors_files import StoredTensor, list_tensors
from embedlib.models.weights.weight_files import weights_digest
from embedlib.progress.phases import telling
from embedlib.progress.screens import Reading
from embedlib.system.memory import gib

FORMAT: Final = 1
"""Of these files."""
NAME: Final = "weights.safetensors"
SOURCE: Final = "source.json"
FREE_SHARE: Final = 0.1
"""Of the free disk that a copy takes at most."""
GATHERED: Final = frozenset({"tokens"})
"""Roles of which rows are looked up and nothing is multiplied: they stay as they are stored."""

_logger = logging.getLogger(__name__)


def pays(precision: ChosenPrecision) -> bool:
    """Return whether float32 in place of 16 bits pays on this machine.

    Source: docs/measurements/cpu-avx2.md, 16-bit files on AVX2 alone. CPUs of Intel were not
    measured.
    """
    if precision.name != "float32":
        return False
    machine = Machine()
    is_intel = "GenuineIntel" in machine.cpu_identity()
    return has_avx2_alone(machine.cpu_features()) and not is_intel


class _Widened(Mapping[str, NDArray[np.float32]]):
    """Arrays that are widened on every access, and are not offered in 16 bits."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._roles = [role for role in weights if role not in GATHERED]

    def __getitem__(self, role: str) -> NDArray[np.float32]:
        if role in GATHERED:
            raise KeyError(role)
        return self._weights[role]

    def __contains__(self, role: object) -> bool:
        return role in self._weights and role not in GATHERED  # `Mapping` would read and convert

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)


def widened_weights(weights: Weights) -> Mapping[str, Any]:
    """Return the weights of a small model in float32, without a file."""
    return ChainMap(cast(Any, _Widened(weights)), cast(Any, weights))


def copied_weights(
    files: ModelFiles, weights: Weights, place: Path, config: Config
) -> Mapping[str, Any] | None:
    """Return the weights of a model from their copy, which is written if there is none.

    Args:
        files: the model.
        weights: its own.
        place: the folder of the copies of all models.
        config: says whether a copy may be written, and how many cores there are.

    Returns:
        None: there is none, and it may not be written, or cannot be, as the log says.
    """
    if not config.prepare and not any(place.glob("float32-*")):
        return None  # before the files are hashed
    stored = tensors_to_store(weights)
    folder = place / f"float32-{_key(files, stored, config)}"
    name = files.hub_name or files.folder.resolve().name
    try:
        if not folder.exists():
            if not config.prepare:
                return None
            with place_lock(folder):
                if not folder.exists():  # another process may have written it meanwhile
                    _logger.info("writing the weights of %s in float32 to %s", name, folder)
                    _write(stored, folder, mapped_paths(weights), config.num_threads, name)
        with suppress(OSError):  # a cache that cannot be written is used all the same
            os.utime(folder)  # the cache of compiled models removes what nobody uses
        if _is_damaged(folder):
            return None
        copy = RoleFile(folder / NAME)
    except (OSError, ModelError) as error:
        _logger.warning("%s is computed from its 16-bit weights, more slowly: %s", name, error)
        return None
    # What is computed when the weights are loaded is not in the copy.
    return copy if weights.keys() <= copy.keys() else ChainMap(cast(Any, copy), cast(Any, weights))


def _key(files: ModelFiles, stored: Mapping[str, StoredTensor], config: Config) -> str:
    """Return what stands for the content of a copy: that of the files, and which part is what."""
    digest = weights_digest(files, file_hashes(config))
    parts = {
        role: (tensor.path.name, tensor.dtype, tensor.shape, tensor.start, tensor.added)
        for role, tensor in stored.items()
    }
    known = json.dumps([FORMAT, digest, parts], sort_keys=True)
    return hashlib.blake2b(known.encode(), digest_size=16).hexdigest()


def _is_damaged(folder: Path) -> bool:
    """Return whether a copy is not whole; then it is removed.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        list_tensors(folder / NAME, folder)
    except ModelWeightsError as error:
        _logger.warning("the copy in %s is damaged and will be removed: %s", folder, error)
        shutil.rmtree(folder)
        return True
    return False


def _write(
    stored: Mapping[str, StoredTensor],
    folder: Path,
    sources: Sequence[Path],
    threads: int,
    name: str,
) -> None:
    """Write a copy, several tensors at a time; it takes the place of others of the same files.

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
            raise OSError(
                f"a copy in float32 takes {gib(num_bytes)}, more than a tenth of the {gib(free)} "
                f"that are free in {folder.parent}; free some, or set EMBEDLIB_PREPARE=false"
            )
        paths = sorted({str(path.resolve()) for path in sources})
        (part / SOURCE).write_text(json.dumps(paths, indent=2) + "\n", encoding="utf-8")
        done = 0

        def count(num_read: int) -> None:
            nonlocal done
            done += num_read

        total = sum(tensor.num_bytes for tensor in stored.values())
        line = f"Preparing {name} for this machine, once"
        with telling(line, "B", lambda: Reading(done=done, total=total)):
            jobs = [partial(_widen, tensor, written[role]) for role, tensor in stored.items()]
            run_jobs(jobs, threads, count)
    _remove_others(folder, paths)
    remove_unused(folder.parent)


def _widen(tensor: StoredTensor, place: StoredTensor, report: ReportBytes) -> None:
    """Write one tensor to its place in the new file."""
    with tensor.path.open("rb") as reader, place.path.open("r+b") as writer:
        writer.seek(place.start)
        for block in read_blocks(tensor, reader, report):
            is_kept = place.dtype == tensor.dtype and not tensor.added
            numbers = block if is_kept else as_numbers(block, tensor).astype("<f4", copy=False)
            writer.write(numbers.data)
        writer.flush()
        # Else what is not on the disk yet could fill the memory of a container.
        os.fsync(writer.fileno())


def _remove_others(folder: Path, paths: Sequence[str]) -> None:
    """Remove the copies of files that have changed since, or that are gone."""
    for source in folder.parent.glob(f"float32-*/{SOURCE}"):
        with suppress(OSError, ValueError, TypeError, RecursionError):  # it is damaged
            known = json.loads(source.read_bytes())
            is_gone = not all(Path(path).exists() for path in known)
            if source.parent != folder and (known == paths or is_gone):
                shutil.rmtree(source.parent)

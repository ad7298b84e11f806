"""The process that reads pickles: it has no network, starts no program, and calls nothing of them.

It reads a task from standard input and writes an answer on each line of standard output.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from embedlib.errors import EmbedlibError, ModelWeightsError, first_line
from embedlib.models.converting.confined import confine
from embedlib.models.converting.safetensors_writer import write_safetensors
from embedlib.models.converting.torch_file import read_torch_file


def main() -> None:
    """Convert the files of the task; end without a word if whoever gave it is gone."""
    text = sys.stdin.read()
    if not text:
        return
    task = json.loads(text)
    try:
        _answer({"confined_by": confine()})
        try:
            _convert(Path(task["folder"]), Path(task["target"]), task["pairs"])
        except BrokenPipeError:
            raise
        except EmbedlibError as error:
            _answer({"error": str(error)})
        except (OSError, MemoryError) as error:
            way = "free memory" if isinstance(error, MemoryError) else "check the files"
            told = f"{task['folder']}: cannot be converted ({first_line(error)}); {way} and "
            _answer({"error": f"{told}run it again"})
    except BrokenPipeError:
        os._exit(1)  # the interpreter would write what is left, and tell that it cannot


def _convert(folder: Path, target: Path, pairs: list[tuple[str, str]]) -> None:
    """Convert files.

    Raises:
        ModelWeightsError: a pickle is damaged, or a file cannot be written.
        BrokenPipeError: nobody reads the answers.
        OSError, MemoryError: a pickle cannot be read.
    """
    num_written = 0

    def report(num_bytes: int) -> None:
        nonlocal num_written
        num_written += num_bytes
        _answer({"bytes": num_written})

    for pickle, weights in pairs:
        tensors = read_torch_file(folder / pickle, folder)
        try:
            write_safetensors(target / weights, tensors, report)
        except BrokenPipeError:
            raise
        except OSError as error:
            told = f"cannot write {target / weights}: {error.strerror or error}"
            raise ModelWeightsError(told) from error
        _answer(
            {
                "pickle": pickle,
                "weights": weights,
                "num_tensors": len(tensors),
                "num_bytes": sum(tensor.num_bytes for tensor in tensors.values()),
            }
        )


def _answer(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()

"""The house's first rule: a newcomer follows one text to its vector in one sitting."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import embedlib
from embedlib import Embedder

PACKAGE = Path(embedlib.__file__).parent
MAX_LINES = 1000


def _functions_of(call: Callable[[], object]) -> list[CodeType]:
    """Return the functions of the package that a call runs on its thread, in reading order."""
    found: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_ours = event == "call" and Path(code.co_filename).is_relative_to(PACKAGE)
        # "<lambda>" and the like are parts of the functions that they are written in.
        if is_ours and not code.co_name.startswith("<"):
            found.setdefault(code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def _lines_of_code(function: CodeType) -> int:
    """Return how many lines a function has, without its docstring, comments and empty lines."""
    lines, _ = inspect.getsourcelines(function)
    node = ast.parse(textwrap.dedent("".join(lines))).body[0]
    is_documented = isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None
    if is_documented:
        docstring = node.body[0]
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def test_one_text_is_followed_in_under_1000_lines_of_code(
    tiny_folder: Callable[[str], Path],
) -> None:
    with Embedder(str(tiny_folder("bert")), precision="float32") as embedder:
        path = _functions_of(lambda: embedder.encode("a text"))
    lengths = {function: _lines_of_code(function) for function in path}
    for function, length in lengths.items():  # shown if it fails, or with `pytest -rP`
        file = Path(function.co_filename).relative_to(PACKAGE)
        sys.stdout.write(f"{length:4d} {file}:{function.co_firstlineno} {function.co_name}\n")
    assert "infer" in {function.co_name for function in path}, "it ends in OpenVINO"
    assert sum(lengths.values()) < MAX_LINES

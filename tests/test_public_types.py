"""Every type in a public signature has a public address."""

from __future__ import annotations

import builtins
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

MODULES = ("embedlib", "embedlib.engines", "embedlib.errors", "embedlib.indexing")
ELSEWHERE = {
    *("Any", "AnySession", "EntryPoint", "Literal", "NoReturn", "UUID", "Unpack"),
    *(
        "AsyncIterable",
        "AsyncIterator",
        "Callable",
        "Collection",
        "Iterable",
        "Iterator",
        "Mapping",
        "Sequence",
    ),
    *("ArrayLike", "Future", "NDArray", "Path", "PathLike", "np.float32", "os.PathLike"),
    *("np.int32", "np.ndarray", "tokenizers.Tokenizer", "Tokenizer"),
}
"""Of Python, numpy and tokenizers."""
NAME = re.compile(r"[A-Za-z_][\w.]*")


def public_names(module: str) -> list[str]:
    found = import_module(module)
    return list(
        getattr(found, "__all__", None) or [name for name in vars(found) if name[0].isupper()]
    )


PUBLIC = {name for module in (*MODULES, "embedlib.types") for name in public_names(module)}


def annotations(subject: object) -> Iterator[tuple[str, str]]:
    """Yield (place, annotation) of a function, or of the public methods and fields of a class."""
    if inspect.isclass(subject):
        for base in subject.__mro__:
            if base.__module__.startswith("embedlib"):
                for name, kind in vars(base).get("__annotations__", {}).items():
                    if not name.startswith("_"):
                        yield name, as_text(kind)
        for name, member in inspect.getmembers(subject):
            method = member.fget if isinstance(member, property) else member
            is_ours = (getattr(method, "__module__", None) or "").startswith("embedlib")
            if inspect.isfunction(method) and is_ours and not name.startswith("_"):
                yield from annotations(method)
        if subject.__init__ is not object.__init__ and inspect.isfunction(subject.__init__):
            yield from annotations(subject.__init__)
    elif inspect.isfunction(subject):
        signature = inspect.signature(subject)
        for parameter in signature.parameters.values():
            if parameter.annotation is not parameter.empty:
                yield f"{subject.__qualname__}({parameter.name})", as_text(parameter.annotation)
        if signature.return_annotation is not signature.empty:
            yield f"{subject.__qualname__}()", as_text(signature.return_annotation)


def as_text(annotation: object) -> str:
    text = getattr(annotation, "__forward_arg__", None) or getattr(annotation, "__name__", None)
    return str(text or annotation)


def hidden(subject: object) -> list[str]:
    found = []
    for place, kind in annotations(subject):
        without_values = re.sub(r"Literal\[[^\]]*\]|'[^']*'|\"[^\"]*\"", "", kind)
        for used in NAME.findall(without_values):
            if used not in PUBLIC | ELSEWHERE and not hasattr(builtins, used):
                found.append(f"{place}: {used}")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_type_of_a_signature_is_public(module: str) -> None:
    found = import_module(module)
    assert [line for name in public_names(module) for line in hidden(getattr(found, name))] == []


@pytest.mark.parametrize(
    "module", ["embedlib", "embedlib.engines", "embedlib.indexing", "embedlib.types"]
)
def test_dir_lists_what_is_imported_on_first_use(module: str) -> None:
    # In a process of its own: an imported name is listed in any case.
    code = f"import {module} as it; print(*set(it.__all__) - set(dir(it)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_type_without_a_public_address_is_found() -> None:
    def public(rows: list[_Hidden]) -> None: ...

    assert [line.rpartition(" ")[2] for line in hidden(public)] == ["_Hidden"]


class _Hidden:
    pass

"""Whether a value is what the annotation of a parameter says, judged apart from the library."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np


def hints_of(function: Callable[..., Any], module: str) -> dict[str, Any]:
    """Return the annotation of each parameter that can be passed by name.

    Args:
        function: a function, method or class.
        module: the name of the module that the annotations were written in.
    """
    names = vars(sys.modules[module])
    return {
        parameter.name: _evaluate(parameter.annotation, names)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name != "self"
    }


def _evaluate(annotation: Any, names: dict[str, Any]) -> Any:
    """Return the type that an annotation names; Any for one that only type checkers can read."""
    try:
        return eval(annotation, names) if isinstance(annotation, str) else annotation
    except NameError:
        return Any


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation; True where that cannot be known."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(conforms(value, argument) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is not None:
        return _conforms_to_container(value, origin, arguments)
    if hint in _PLAIN:
        return _PLAIN[hint](value)
    if hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint)


def _is_number(value: Any) -> bool:
    if isinstance(value, Integral):  # a long one is too large for isnan
        return not isinstance(value, bool)
    return isinstance(value, Real) and not math.isnan(value)


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    type(None): lambda value: value is None,
    bool: lambda value: isinstance(value, bool | np.bool_),
    int: lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    float: _is_number,
    os.PathLike: lambda value: isinstance(value, os.PathLike),
}


def _conforms_to_container(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            conforms(item, hint)
            for pair in value.items()
            for item, hint in zip(pair, arguments, strict=True)
        )
    if not isinstance(origin, type) or not issubclass(origin, Iterable):
        return True  # callables, arrays and generics of the caller's
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | set | frozenset):
        return False
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and all(conforms(item, arguments[0]) for item in value.tolist())
    if issubclass(origin, Collection) and not isinstance(value, Sequence):
        return False
    if not isinstance(value, Sequence) or not arguments:
        return isinstance(value, Iterable)
    is_fixed = origin is tuple and arguments[-1] is not Ellipsis
    if is_fixed and not (isinstance(value, tuple) and len(value) == len(arguments)):
        return False
    hints = arguments if is_fixed else itertools.repeat(arguments[0])
    return all(conforms(item, hint) for item, hint in zip(value, hints, strict=False))

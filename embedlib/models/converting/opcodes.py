"""Reads the pickle of a PyTorch checkpoint without running it.

A pickle is a program: it names functions of any module and calls them. Here its opcodes, which
`pickletools` tells apart, are read by a machine of our own that knows nothing but tuples, dicts,
numbers, strings and references to storages. It calls nothing: of the functions that a checkpoint
names, three are known, and what they would make is described instead. Everything else is refused by
name.

Source: Python's pickletools.py, which documents each opcode, and torch/_weights_only_unpickler.py
of PyTorch 2.13 for what a checkpoint needs of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pickletools import genops
from typing import Any, Final

from embedlib.checks import is_unicode
from embedlib.errors import ModelWeightsError

MAX_STACK: Final = 1 << 20
"""Values at a time; SETITEMS takes two for each tensor."""
MAX_OPCODES: Final = 1 << 23
"""Of a program; a tensor takes some fifty. Each may make a value of 64 bytes, and a string takes
four times its bytes at most."""
MAX_DIMS: Final = 8
"""Axes of a tensor."""


@dataclass(frozen=True)
class Storage:
    """A reference to the bytes of tensors."""

    kind: str
    """The type of its numbers: a value of `STORAGES`."""
    key: str
    """The name of its entry in the file."""
    num_items: int


@dataclass(frozen=True)
class PickledTensor:
    """A tensor as a checkpoint describes it."""

    storage: Storage
    offset: int
    """Of the first number, counted in numbers."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """A global that the pickle names; nothing is imported."""

    text: str


STORAGES: Final[Mapping[str, str]] = {
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
}
"""The global that names a storage's type, to the type's name in safetensors."""
REBUILD: Final = "torch._utils _rebuild_tensor_v2"
PARAMETER: Final = "torch._utils _rebuild_parameter"
ORDERED_DICT: Final = "collections OrderedDict"
GLOBALS: Final = frozenset({*STORAGES, REBUILD, PARAMETER, ORDERED_DICT})

_MARK: Final = object()
"""Where a tuple, or the items of a dict, begin on the stack."""


def read_checkpoint(program: bytes, file: str) -> dict[str, PickledTensor]:
    """Return the tensors of a checkpoint by name.

    Args:
        program: the pickle.
        file: its name in messages.

    Raises:
        ModelWeightsError: it does anything but describe a dict of tensors.
    """
    value = _Machine(program, file).run()
    if not isinstance(value, dict) or not value:
        found = "an empty dict" if value == {} else _kind(value)
        raise ModelWeightsError(f"{file}: holds no dict of tensors, but {found}")
    for name, tensor in value.items():
        if not isinstance(tensor, PickledTensor):
            remedy = (
                "; save that one in its place where torch is installed: "
                f"torch.save(torch.load(FILE, weights_only=True)[{name[:80]!r}], FILE)"
                if isinstance(tensor, dict)
                else ""
            )
            raise ModelWeightsError(
                f"{file}: {name[:80]!r} is {_kind(tensor)}; only a dict of tensors is converted"
                f"{remedy}"
            )
    return value


class _Machine:
    """Reads one program. Each opcode costs bounded time and memory, and none is recursive."""

    def __init__(self, program: bytes, file: str) -> None:
        self._program = program
        self._file = file
        self._at: int | None = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the value that the program leaves."""
        try:
            for opcode, given, at in islice(genops(self._program), MAX_OPCODES):
                self._at = at
                if opcode.name == "STOP":
                    return self._pop()
                self._do(opcode.name, given)
        # Of pickletools: there is no such opcode, it is cut short, or warnings are errors here.
        except (ValueError, DeprecationWarning) as error:
            raise self._damaged() from error
        raise self._refused(f"more than {MAX_OPCODES} opcodes")

    def _do(self, name: str, given: Any) -> None:
        """Do what an opcode asks for with the number or string behind it, if it has one."""
        match name:
            case "PROTO":
                if given != 2:
                    raise self._refused(f"protocol {given}")
            case "GLOBAL":
                if given not in GLOBALS:
                    raise self._refused(_dotted(given))
                self._push(_Name(given))
            case "BINUNICODE" | "SHORT_BINUNICODE":
                if not is_unicode(given):
                    raise self._damaged()
                self._push(given)
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                self._push(given)
            case "NONE":
                self._push(None)
            case "NEWTRUE" | "NEWFALSE":
                self._push(name == "NEWTRUE")
            case "MARK":
                self._push(_MARK)
            case "BINPUT" | "LONG_BINPUT":
                self._memo[given] = self._top()
            case "BINGET" | "LONG_BINGET":
                if given not in self._memo:
                    raise self._damaged()
                self._push(self._memo[given])
            case "EMPTY_DICT":
                self._push({})
            case "EMPTY_LIST":
                self._push([])
            case "EMPTY_TUPLE":
                self._push(())
            case "TUPLE":
                self._push(tuple(self._from_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self._pop() for _ in range(int(name[-1]))]
                self._push(tuple(reversed(items)))
            case "SETITEM":
                value, key = self._pop(), self._pop()
                self._set([key, value])
            case "SETITEMS":
                self._set(self._from_mark())
            case "REDUCE":
                arguments, function = self._pop(), self._pop()
                self._push(self._described(function, arguments))
            case "BINPERSID":
                self._push(self._storage(self._pop()))
            case "BUILD":  # the attributes of an OrderedDict: versions of modules, for nobody
                self._pop()
                if not isinstance(self._top(), dict):
                    raise self._refused(f"attributes of {_kind(self._top())}")
            case _:
                raise self._refused(f"the opcode {name}")

    def _described(self, function: object, given: Any) -> object:
        """Return what a call would make; nothing is called."""
        if function == _Name(ORDERED_DICT) and given == ():
            return {}
        if function == _Name(REBUILD) and isinstance(given, tuple):
            return self._tensor(given)
        if function == _Name(PARAMETER) and _is_of_tensor(given):
            return given[0]
        raise self._refused(f"a call of {_kind(function)} with {_kind(given)}")

    def _tensor(self, given: tuple[Any, ...]) -> PickledTensor:
        """Return the tensor that `_rebuild_tensor_v2` would make of its arguments."""
        if len(given) != 6:  # a seventh negates or conjugates the tensor when it is read
            raise self._refused(f"a tensor of {len(given)} arguments")
        storage, offset, shape, strides = given[:4]
        if not isinstance(storage, Storage):
            raise self._refused(f"a tensor of {_kind(storage)}")
        if not (_is_count(offset) and _are_counts(shape) and _are_counts(strides)):
            raise self._refused("a tensor whose shape is no list of whole numbers")
        if len(shape) != len(strides) or len(shape) > MAX_DIMS:
            raise self._refused(f"a tensor of {len(shape)} axes and {len(strides)} strides")
        return PickledTensor(storage, offset, shape, strides)

    def _storage(self, given: Any) -> Storage:
        """Return the storage that ("storage", type, key, place, number of items) names."""
        is_one = isinstance(given, tuple) and len(given) == 5 and given[0] == "storage"
        kind = STORAGES.get(given[1].text) if is_one and isinstance(given[1], _Name) else None
        if kind is None or not isinstance(given[2], str) or not _is_count(given[4]):
            raise self._refused("a reference that is no storage")
        return Storage(kind, given[2], given[4])

    def _set(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise self._refused(f"items of {_kind(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise self._refused(f"a key that is {_kind(key)}")
            target[key] = value

    def _push(self, value: object) -> None:
        if len(self._stack) >= MAX_STACK:
            raise self._refused(f"more than {MAX_STACK} values at a time")
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise self._damaged()
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            raise self._damaged()
        return self._stack[-1]

    def _from_mark(self) -> list[Any]:
        """Take the values behind the last mark."""
        items = []
        while self._stack and self._stack[-1] is not _MARK:
            items.append(self._stack.pop())
        if not self._stack:
            raise self._damaged()
        self._stack.pop()
        return items[::-1]

    def _refused(self, what: str) -> ModelWeightsError:
        shown = what if what.isprintable() else ascii(what)[1:-1]
        return ModelWeightsError(
            f"{self._file}: the pickle has {shown[:200]}, at byte {self._at}, which no dict of "
            "tensors needs; it is not converted, and nothing of it was run"
        )

    def _damaged(self) -> ModelWeightsError:
        return ModelWeightsError(
            f"{self._file}: the pickle is damaged from byte {self._at} on; download it again"
        )


def _is_of_tensor(given: object) -> bool:
    """Whether these are a parameter's arguments: a tensor, requires_grad and hooks."""
    return isinstance(given, tuple) and len(given) == 3 and isinstance(given[0], PickledTensor)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_counts(values: object) -> bool:
    return isinstance(values, tuple) and all(map(_is_count, values))


def _kind(value: object) -> str:
    """Return what a value is, for a message."""
    if isinstance(value, _Name):
        return _dotted(value.text)
    names = {PickledTensor: "a tensor", type(None): "None"}
    return names.get(type(value), f"a {type(value).__name__.lower()}")


def _dotted(name: str) -> str:
    """Return a global as Python writes it, of what pickletools makes of its two lines."""
    return name.replace(" ", ".", 1)

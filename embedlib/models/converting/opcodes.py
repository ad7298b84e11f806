"""Reads the pickle of a PyTorch checkpoint without running it.

A pickle is a program: it names functions of any module and calls them. Here its opcodes are read by
a machine of our own that knows nothing but tuples, dicts, numbers, strings and references to
storages. It calls nothing: of the functions that a checkpoint names, three are known, and what
they would make is described instead. Everything else is refused by name.

Source: Python's pickletools.py, which documents each opcode, and torch/_weights_only_unpickler.py
of PyTorch 2.13 for what a checkpoint needs of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from embedlib.errors import ModelWeightsError

MAX_STRING_BYTES: Final = 4096
"""Of a name; tensor names of known models have at most 120."""
MAX_STACK: Final = 1 << 20
"""Values at a time; SETITEMS takes two for each tensor."""
MAX_OPCODES: Final = 1 << 23
"""Of a program; a tensor takes some fifty. Each may make a value of 64 bytes."""


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


class _Mark:
    """Where a tuple, or the items of a dict, begin on the stack."""


class _Extra:
    """What `BUILD` and hooks take and nobody needs."""


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

_MARK: Final = _Mark()
_FIXED: Final[Mapping[int, object]] = {
    ord("N"): None,
    0x88: True,
    0x89: False,
    ord(")"): (),
    ord("("): _MARK,
}
"""Opcodes that push a value: NONE, NEWTRUE, NEWFALSE, EMPTY_TUPLE, MARK."""
_NUMBERS: Final[Mapping[int, str]] = {
    ord("J"): "<i",
    ord("K"): "<B",
    ord("M"): "<H",
    ord("G"): ">d",
}
"""BININT, BININT1, BININT2, BINFLOAT: the format of the number behind the opcode."""
_STRINGS: Final[Mapping[int, str]] = {ord("X"): "<I", 0x8C: "<B"}
"""BINUNICODE, SHORT_BINUNICODE: the format of the length behind the opcode."""
_PUTS: Final[Mapping[int, str]] = {ord("q"): "<B", ord("r"): "<I"}
_GETS: Final[Mapping[int, str]] = {ord("h"): "<B", ord("j"): "<I"}


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
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._actions: Mapping[int, Callable[[], None]] = {
            0x80: self._protocol,
            ord("c"): self._global,
            ord("R"): self._reduce,
            ord("Q"): self._persistent,
            ord("}"): lambda: self._push({}),
            ord("]"): lambda: self._push(_Extra()),
            ord("b"): self._build,
            ord("s"): self._set_item,
            ord("u"): lambda: self._set(self._from_mark()),
            ord("t"): lambda: self._push(tuple(self._from_mark())),
            0x85: lambda: self._tuple(1),
            0x86: lambda: self._tuple(2),
            0x87: lambda: self._tuple(3),
            0x8A: self._long,
        }

    def run(self) -> Any:
        """Return the value that the program leaves."""
        for _ in range(MAX_OPCODES):
            code = self._take(1)[0]
            if code == ord("."):
                return self._pop()
            if code in _FIXED:
                self._push(_FIXED[code])
            elif code in _NUMBERS:
                self._push(self._number(_NUMBERS[code]))
            elif code in _STRINGS:
                self._push(self._string(self._number(_STRINGS[code])))
            elif code in _PUTS:
                self._memo[self._number(_PUTS[code])] = self._top()
            elif code in _GETS:
                self._get(self._number(_GETS[code]))
            elif code in self._actions:
                self._actions[code]()
            else:
                raise self._refused(f"the opcode {bytes([code])!r}")
        raise self._refused(f"more than {MAX_OPCODES} opcodes")

    # Opcodes.

    def _protocol(self) -> None:
        version = self._take(1)[0]
        if version != 2:
            raise self._refused(f"protocol {version}")

    def _global(self) -> None:
        module, name = self._line(), self._line()
        text = f"{module} {name}"
        if text not in GLOBALS:
            raise self._refused(f"{module}.{name}")
        self._push(_Name(text))

    def _reduce(self) -> None:
        """Describe what a call would make; nothing is called."""
        given, function = self._pop(), self._pop()
        if function == _Name(ORDERED_DICT) and given == ():
            self._push({})
        elif function == _Name(REBUILD) and isinstance(given, tuple):
            self._push(self._tensor(given))
        elif function == _Name(PARAMETER) and _is_of_tensor(given):
            self._push(given[0])
        else:
            raise self._refused(f"a call of {_kind(function)} with {_kind(given)}")

    def _tensor(self, given: tuple[Any, ...]) -> PickledTensor:
        """Return the tensor that `_rebuild_tensor_v2` would make of its arguments."""
        if len(given) not in (6, 7):
            raise self._refused(f"a tensor of {len(given)} arguments")
        storage, offset, shape, strides = given[:4]
        if not isinstance(storage, Storage):
            raise self._refused(f"a tensor of {_kind(storage)}")
        if not (_is_count(offset) and _are_counts(shape) and _are_counts(strides)):
            raise self._refused("a tensor whose shape is no list of whole numbers")
        if len(shape) != len(strides):
            raise self._refused("a tensor with more axes than strides, or less")
        return PickledTensor(storage, offset, shape, strides)

    def _persistent(self) -> None:
        """Push the storage that ("storage", type, key, place, number of items) names."""
        given = self._pop()
        is_one = isinstance(given, tuple) and len(given) == 5 and given[0] == "storage"
        kind = STORAGES.get(given[1].text) if is_one and isinstance(given[1], _Name) else None
        if kind is None or not isinstance(given[2], str) or not _is_count(given[4]):
            raise self._refused("a reference that is no storage")
        self._push(Storage(kind, given[2], given[4]))

    def _build(self) -> None:
        """Drop the attributes of an OrderedDict: versions of the modules, which nobody reads."""
        self._pop()
        if not isinstance(self._top(), dict):
            raise self._refused(f"attributes of {_kind(self._top())}")

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def _set(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise self._refused(f"items of {_kind(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise self._refused(f"a key that is {_kind(key)}")
            target[key] = value

    def _tuple(self, size: int) -> None:
        items = [self._pop() for _ in range(size)]
        self._push(tuple(reversed(items)))

    def _long(self) -> None:
        size = self._take(1)[0]
        if size > 8:
            raise self._refused("a number of more than 64 bits")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _get(self, place: int) -> None:
        if place not in self._memo:
            raise self._damaged()
        self._push(self._memo[place])

    # Bytes and stack.

    def _take(self, size: int) -> bytes:
        taken = self._program[self._at : self._at + size]
        if len(taken) < size:
            raise self._damaged()
        self._at += size
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _string(self, size: int) -> str:
        if size > MAX_STRING_BYTES:
            raise self._refused(f"a string of {size} bytes")
        return self._decoded(self._take(size))

    def _line(self) -> str:
        end = self._program.find(b"\n", self._at, self._at + MAX_STRING_BYTES)
        if end < 0:
            raise self._damaged()
        line = self._take(end - self._at)
        self._take(1)
        return self._decoded(line)

    def _decoded(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self._damaged() from error

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
            f"{self._file}: the pickle is damaged at byte {self._at}; download it again"
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
        return value.text.replace(" ", ".")
    names = {dict: "a dict", PickledTensor: "a tensor", _Extra: "a list", type(None): "None"}
    return names.get(type(value), f"a {type(value).__name__.lstrip('_').lower()}")

"""Damages of the values inside a model's files: keys and values of JSON, entries of weights."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

Kind = Callable[[random.Random, Path], str]
"""Damages a folder and says what it did."""

HUGE_NUMBERS = (100_000, 2**31, 10**9, 10**12, 2**63, 10**30, 10**400, 1e308)
OTHER_NUMBERS = (0, -1, -(2**31), 0.5, 1, 3, 7, 1e-40, True)
OTHER_TYPES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1.5,
    "",
    "x",
    "1",
    [],
    {},
    [1],
    ["x"],
    {"a": 1},
    [[]],
    [None],
)
ODD_STRINGS = (
    "a\nb",
    "a\r\nb",
    "a\x00b",
    "a\u2028b",
    "\ud800",
    "\u202egnp",
    "../../etc/passwd",
    "/dev/zero",
    "~",
    "%s{}",
    ".",
    "",
    " ",
    "\U0001f600" * 70,
)
DTYPES = ("F64", "F32", "F16", "BF16", "I8", "I64", "F8_E4M3", "BOOL", "X")


def files_of(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if path.is_file())


# Values of JSON files.


def _places(values: Any) -> list[tuple[Any, Any]]:
    """All values inside a value: the container and the key of each."""
    found: list[tuple[Any, Any]] = []
    left = [values]
    while left:
        container = left.pop()
        keys = container if isinstance(container, dict) else range(len(container))
        found += [(container, key) for key in keys]
        left += [container[key] for key in keys if isinstance(container[key], (dict, list))]
    return found


def _draw_json(rng: random.Random, folder: Path) -> tuple[Path, Any]:
    path = rng.choice(files_of(folder, "*.json"))
    return path, json.loads(path.read_text(encoding="utf-8"))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _valued(choose: Callable[[random.Random], Any], is_for: Callable[[Any], bool]) -> Kind:
    """Replace a value of a JSON file; one of the right type where there is one."""

    def do(rng: random.Random, folder: Path) -> str:
        path, values = _draw_json(rng, folder)
        places = _places(values)
        fitting = [(inside, key) for inside, key in places if is_for(inside[key])]
        if not places:
            path.write_text(json.dumps(choose(rng)))
            return f"{path.name} is another value"
        container, key = rng.choice(fitting or places)
        container[key] = choose(rng)
        path.write_text(json.dumps(values))
        return f"{path.name}: {str(key)[:40]} = {str(container[key])[:40]}"

    return do


def _odd_text(rng: random.Random) -> str:
    return rng.choice([*ODD_STRINGS, "x" * rng.choice([300, 5000, 10**6])])


def _nest(rng: random.Random, folder: Path) -> str:
    path, values = _draw_json(rng, folder)
    depth = rng.choice([60, 120, 900, 20_000, 100_000])
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}")])
    nested = opened * depth + "1" * (opened != "[") + closed * depth
    places = _places(values)
    if not places or rng.random() < 0.3:
        path.write_text(nested)
        return f"{path.name}, {depth} deep"
    container, key = rng.choice(places)
    container[key] = "@@nested@@"
    path.write_text(json.dumps(values).replace('"@@nested@@"', nested))
    return f"{path.name}: {str(key)[:40]}, {depth} deep"


def _keyed(change: Callable[[random.Random, dict[str, Any], str], str]) -> Kind:
    """Change a key of an object in a JSON file."""

    def do(rng: random.Random, folder: Path) -> str:
        path, values = _draw_json(rng, folder)
        objects = [values] if isinstance(values, dict) and values else []
        objects += [part[key] for part, key in _places(values) if isinstance(part[key], dict)]
        objects = [entry for entry in objects if entry]
        if not objects:
            path.write_text('{"a": 1}')
            return f"{path.name}: a new key"
        chosen = rng.choice(objects)
        text = change(rng, chosen, rng.choice(list(chosen)))
        path.write_text(json.dumps(values))
        return f"{path.name}: {text[:60]}"

    return do


def _remove_key(rng: random.Random, values: dict[str, Any], key: str) -> str:
    del values[key]
    return key


def _rename_key(rng: random.Random, values: dict[str, Any], key: str) -> str:
    name = rng.choice([key + "_", key.upper(), *ODD_STRINGS, "x" * 5000])
    values[name] = values.pop(key)
    return f"{key} to {name}"


def _swap_values(rng: random.Random, values: dict[str, Any], key: str) -> str:
    other = rng.choice(list(values))
    values[key], values[other] = values[other], values[key]
    return f"{key}, {other}"


def _repeat_key(rng: random.Random, folder: Path) -> str:
    path, values = _draw_json(rng, folder)
    places = [(part, key) for part, key in _places(values) if isinstance(part, dict)]
    if not places:
        return f"{path.name} has no key"
    _, key = rng.choice(places)
    again = json.dumps({key: rng.choice(OTHER_TYPES + OTHER_NUMBERS)})[1:-1]
    text = path.read_text(encoding="utf-8")
    place = text.index("{") + 1
    path.write_text(text[:place] + again + "," + text[place:])
    return f"{path.name}: {key}"


def _entry_of_modules(rng: random.Random, folder: Path) -> str:
    path = folder / "modules.json"
    if not path.is_file():
        path.write_text("[]")
        return "modules.json is new, and empty"
    entries = json.loads(path.read_text(encoding="utf-8"))
    text = rng.choice(["reversed", "repeated", "removed", "without end"])
    position = rng.randrange(len(entries))
    if text == "reversed":
        entries.reverse()
    elif text == "repeated":
        entries.insert(position, entries[position])
    elif text == "removed":
        del entries[position]
    else:
        entries *= 10_000
    path.write_text(json.dumps(entries))
    return text


def _template_of_tokenizer(rng: random.Random, folder: Path) -> str:
    path = rng.choice(files_of(folder, "tokenizer.json"))
    values = json.loads(path.read_text(encoding="utf-8"))
    post = values.get("post_processor") or {}
    text = rng.choice(["no special tokens", "other ids", "no text", "two texts"])
    if text == "no special tokens":
        post["special_tokens"] = {}
    elif text == "other ids":
        post["special_tokens"] = {
            token: {"id": token, "ids": [rng.choice([999_999, 2**31, 2**40])], "tokens": [token]}
            for token in post.get("special_tokens", {"a": 1})
        }
    else:
        post["single"] = [{"Sequence": {"id": "A", "type_id": 0}}] * (2 * (text == "two texts"))
    values["post_processor"] = post
    path.write_text(json.dumps(values))
    return text


# Weights.


def _headed(change: Callable[[random.Random, dict[str, Any], str], str]) -> Kind:
    """Change the entry of a tensor in the header of a safetensors file, and nothing else."""

    def do(rng: random.Random, folder: Path) -> str:
        path = rng.choice(files_of(folder, "*.safetensors"))
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        name = rng.choice([name for name in header if name != "__metadata__"])
        text = change(rng, header, name)
        raw = json.dumps(header).encode("utf-8", "replace")
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + content[8 + length :])
        return f"{path.name}: {name}: {text[:60]}"

    return do


def _move_tensor(rng: random.Random, header: dict[str, Any], name: str) -> str:
    first, last = header[name]["data_offsets"]
    by = rng.choice([-4, 4, 2**20, 2**62, -(2**40)])
    both = rng.random() < 0.5
    header[name]["data_offsets"] = [first + by * both, last + by]
    return f"moved by {by}"


def _overlap_tensors(rng: random.Random, header: dict[str, Any], name: str) -> str:
    other = rng.choice([entry for entry in header if entry != "__metadata__"])
    header[name]["data_offsets"] = header[other]["data_offsets"]
    return f"lies where {other} does"


def _type_tensor(rng: random.Random, header: dict[str, Any], name: str) -> str:
    header[name]["dtype"] = rng.choice(DTYPES)
    return str(header[name]["dtype"])


def _shape_tensor(rng: random.Random, header: dict[str, Any], name: str) -> str:
    shape = header[name]["shape"]
    shapes: tuple[Any, ...] = (
        shape[::-1],
        [*shape, 1],
        [1, *shape],
        [],
        [0],
        [2**62, 4],
        [-1],
        ["x"],
        None,
        [1.5],
    )
    header[name]["shape"] = rng.choice(shapes)
    return str(header[name]["shape"])


def _rename_tensor(rng: random.Random, header: dict[str, Any], name: str) -> str:
    new = rng.choice([name + "_", "__metadata__", *ODD_STRINGS, "x" * 10**5])
    header[new] = header.pop(name)
    return f"to {new}"


def _remove_tensor(rng: random.Random, header: dict[str, Any], name: str) -> str:
    del header[name]
    return "removed"


def _length_of_header(rng: random.Random, folder: Path) -> str:
    path = rng.choice(files_of(folder, "*.safetensors"))
    length = rng.choice([0, 1, 10**6, 10**8 + 1, 2**40, 2**63, 2**64 - 1])
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    return f"{path.name}: {length} bytes"


def _odd_weights(rng: random.Random, folder: Path) -> str:
    path = rng.choice(files_of(folder, "*.safetensors"))
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    value = rng.choice([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45])
    for _ in range(rng.choice([1, 100])):
        place = rng.randrange(8 + length, len(content) - 4) // 4 * 4
        content[place : place + 4] = struct.pack("<f", value)
    path.write_bytes(content)
    return f"{path.name}: {value}"


VALUE_DAMAGES: MappingProxyType[str, Kind] = MappingProxyType(
    {
        "huge number": _valued(lambda rng: rng.choice(HUGE_NUMBERS), _is_number),
        "other number": _valued(lambda rng: rng.choice(OTHER_NUMBERS), _is_number),
        "no number": _valued(
            lambda rng: rng.choice([float("nan"), float("inf"), -float("inf")]), _is_number
        ),
        "another type": _valued(lambda rng: rng.choice(OTHER_TYPES), lambda value: True),
        "odd string": _valued(_odd_text, lambda value: isinstance(value, str)),
        "emptied": _valued(
            lambda rng: rng.choice(([], {})), lambda value: isinstance(value, (list, dict))
        ),
        "long list": _valued(
            lambda rng: [0] * rng.choice([1000, 10**5]), lambda value: isinstance(value, list)
        ),
        "nested": _nest,
        "key removed": _keyed(_remove_key),
        "key renamed": _keyed(_rename_key),
        "values swapped": _keyed(_swap_values),
        "key repeated": _repeat_key,
        "modules": _entry_of_modules,
        "template": _template_of_tokenizer,
        "tensor moved": _headed(_move_tensor),
        "tensors overlap": _headed(_overlap_tensors),
        "tensor's type": _headed(_type_tensor),
        "tensor's shape": _headed(_shape_tensor),
        "tensor renamed": _headed(_rename_tensor),
        "tensor removed": _headed(_remove_tensor),
        "header's length": _length_of_header,
        "odd weights": _odd_weights,
    }
)

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from embedlib.engines.cuda.kernels import (
    attention,
    convolution,
    experts,
    few_rows,
    overlap,
    pooling,
    rotation,
    rows,
)


def launched() -> Iterator[Any]:
    for module in (attention, convolution, experts, few_rows, pooling, rotation, rows):
        yield from (value for name, value in vars(module).items() if name.endswith("_kernel"))


@pytest.mark.parametrize("kernel", [*launched()], ids=lambda kernel: kernel.fn.__name__)
def test_a_kernel_waits_before_it_does_anything(kernel: Any) -> None:
    [function] = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn))).body
    assert isinstance(function, ast.FunctionDef)
    _, first, *_ = function.body  # behind the docstring
    assert ast.unparse(first) == "wait_for_inputs(OVERLAPS)"


@pytest.mark.parametrize(
    ("device", "capability", "driver", "overlaps"),
    [
        ("cuda:0", (9, 0), 13_000, True),
        ("cuda:0", (9, 0), 12_030, True),
        ("cuda:0", (9, 0), 12_020, False),
        ("cuda:0", (12, 0), 13_000, False),
        ("cuda:0", (8, 9), 13_000, False),
        ("cpu", (9, 0), 13_000, False),
    ],
)
def test_kernels_overlap_where_it_was_measured(
    device: str,
    capability: tuple[int, int],
    driver: int,
    overlaps: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: driver, raising=False)
    assert overlap._overlaps.__wrapped__(torch.device(device)) == overlaps


def test_a_torch_that_does_not_tell_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.delattr(torch._C, "_cuda_getDriverVersion", raising=False)
    assert not overlap._overlaps.__wrapped__(torch.device("cuda:0"))

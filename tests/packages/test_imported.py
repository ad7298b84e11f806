from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from embedlib.config import device_name
from embedlib.packages.imported import imported_torch
from embedlib.session.scoring import activate
from embedlib.vectors.similarity import as_torch, off_device


@pytest.fixture
def partial(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """torch as it is while another thread imports it."""
    spec: Any = importlib.util.spec_from_loader("torch", loader=None)
    spec._initializing = True
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_torch_counts_once_it_is_imported_to_its_end(partial: ModuleType) -> None:
    assert imported_torch() is None
    spec: Any = partial.__spec__
    spec._initializing = False
    assert imported_torch() is partial


def test_a_part_of_torch_is_left_alone(partial: ModuleType) -> None:
    numbers = np.ones((2, 2), np.float32)
    assert as_torch(numbers) is numbers
    assert off_device(numbers) is numbers
    assert device_name("cpu") == "cpu"
    np.testing.assert_array_equal(activate(numbers, lambda each: each), numbers)


@pytest.mark.parametrize("module", [None, ModuleType("torch")])
def test_a_module_without_a_spec(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", module)
    assert imported_torch() is module

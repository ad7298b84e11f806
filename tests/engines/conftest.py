"""What the tests of engines share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of what OpenVINO is asked for: "compile" or "import"."""
    # Here, so that a machine with a GPU and no OpenVINO can run the tests of the CUDA engine.
    from embedlib.engines.openvino.library import ov

    found: list[str] = []
    for name in ("compile", "import"):
        method = getattr(ov.Core, f"{name}_model")

        def spy(*args: Any, name: str = name, method: Any = method) -> Any:
            found.append(name)
            return method(*args)

        monkeypatch.setattr(ov.Core, f"{name}_model", spy)
    return found

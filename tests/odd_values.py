"""Values of all kinds, most of which an option does not take."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

NOTHING: Final = np.zeros((0, 0))
ODD_VALUES: Final[tuple[Any, ...]] = (
    *(0.5j, b"x", object(), lambda: None, {3: 4}, {"a"}, [object()], [["x"]], NOTHING, np.zeros(3)),
    *(-1, 2.5, float("nan"), "false", "8", "", "\ud800", True, 0, {}, [], ("cpu", 3)),
    np.array("a"),
)

"""Numbers that JSON has: it knows neither NaN nor infinity."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """Return JSON values with None in the place of every NaN and every infinity."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None

"""torch, where the program has imported it; embedlib imports it for no one who has not."""

from __future__ import annotations

import sys
from typing import Any


def imported_torch() -> Any | None:
    """Return torch if it has been imported to its end; None: who calls cannot have its objects.

    While another thread imports it, the module is there without its parts, and a call of one that
    is there ends the process.
    """
    torch = sys.modules.get("torch")
    # What the import statement itself looks at, before it takes a module without its lock.
    is_partial = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if is_partial else torch

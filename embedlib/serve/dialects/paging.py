"""Lists with cursors, as OpenAI spells them.

Source: openai-python 3.54, `pagination.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from embedlib.serve.errors import HTTPError
from embedlib.serve.exchange import Exchange
from embedlib.serve.jobs.database import Page

LIMITS = ("after", "limit")
"""The parameters of every list."""


class _Row(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=_Row)


def page_of(exchange: Exchange, *, most: int, usual: int) -> tuple[str | None, int]:
    """Return the parameters `after` and `limit` of a request.

    Raises:
        HTTPError: the limit is no number, or out of range.
    """
    parameters = exchange.request.parameters()
    text = parameters.get("limit", str(usual))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise HTTPError.wrong_value("limit", text, f"it must be 1 to {most}")
    return parameters.get("after"), int(text)


def write_page(page: Page[R], describe: Callable[[R], object]) -> dict[str, object]:
    """Return a list as OpenAI writes it."""
    return {
        "object": "list",
        "data": [describe(row) for row in page.rows],
        "first_id": page.rows[0].id if page.rows else None,
        "last_id": page.rows[-1].id if page.rows else None,
        "has_more": page.has_more,
    }

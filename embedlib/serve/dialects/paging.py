"""Lists with cursors, as OpenAI spells them.

Source: openai-python 3.54, `pagination.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.database import R
from embedlib.serve.jobs.own_jobs import OwnRows
from embedlib.serve.requests.asgi import Response
from embedlib.serve.requests.exchange import Exchange

LIMITS = ("after", "limit")
"""The parameters of every list."""


async def answer_page(
    exchange: Exchange,
    rows: OwnRows[R],
    describe: Callable[[R], object],
    *,
    most: int,
    usual: int,
    is_descending: bool = True,
    **equal: str | None,
) -> Response:
    """Answer with the page of a list that the parameters `after` and `limit` name.

    Args:
        exchange: the request.
        rows: of the list.
        describe: returns a row as its dialect describes it.
        most: rows of a page.
        usual: of one without a limit.
        is_descending: the newest first.
        **equal: values that columns must have; None or empty: any.

    Raises:
        HTTPError: the limit is no number, or out of range; or there is no row `after`.
    """
    parameters = exchange.request.parameters()
    text = parameters.get("limit", str(usual))
    if not (text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):
        raise HTTPError.wrong_value("limit", text, f"it must be 1 to {most}")
    page = await rows.page(
        after=parameters.get("after"), limit=int(text), is_descending=is_descending, **equal
    )
    content = {
        "object": "list",
        "data": [describe(row) for row in page.rows],
        "first_id": page.rows[0].id if page.rows else None,
        "last_id": page.rows[-1].id if page.rows else None,
        "has_more": page.has_more,
    }
    return await exchange.answer(content, len(page.rows))

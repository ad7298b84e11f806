"""How much of the bodies is held, of one request and of all."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any
from unittest.mock import Mock

import pytest

from embedlib.serve import ServeOptions
from embedlib.serve.errors import ClientGoneError, HTTPError
from embedlib.serve.requests.asgi import Request
from embedlib.serve.requests.bodies import BodyReader
from embedlib.serve.requests.endable import Endable

GONE = {"type": "http.disconnect"}


def part(size: int, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


def read(reader: BodyReader, *messages: dict[str, Any]) -> bytes:
    """Read a body that says nothing of its length, as those in chunks."""
    left = iter(messages)

    async def receive() -> Any:
        found = next(left, None)
        if found is None:
            await asyncio.Event().wait()  # the client sends no more
        return found

    async def in_block() -> bytes:
        with Endable() as block:
            body = await reader.read(Request("POST", "/", "", {}, ""), receive, block)
            assert all(timer.cancelled() for timer in block._timers)  # it may be computed for long
            return body

    return asyncio.run(in_block())


def test_bodies_are_held_until_they_are_answered() -> None:
    reader = BodyReader(ServeOptions(max_body_bytes=8, max_held_bytes=10))
    first = read(reader, part(3, more=True), part(5))
    assert first == b"x" * 8
    with pytest.raises(HTTPError, match="11 bytes of requests wait for an answer, the limit is 10"):
        read(reader, part(2, more=True), part(1))
    assert reader.held_bytes == 8
    assert read(reader, part(2)) == b"x" * 2


@pytest.mark.parametrize(
    ("messages", "error", "status"),
    [
        ([part(6, more=True), part(3)], HTTPError, 413),
        ([part(6, more=True), GONE], ClientGoneError, None),
        ([part(6, more=True)], HTTPError, 408),
    ],
)
def test_nothing_is_held_of_a_body_that_is_given_up(
    messages: list[dict[str, Any]], error: type[Exception], status: int | None
) -> None:
    seconds = 0 if status == 408 else 30
    reader = BodyReader(ServeOptions(max_body_bytes=8, max_held_bytes=10, body_seconds=seconds))
    with pytest.raises(error) as caught:
        read(reader, *messages)
    assert getattr(caught.value, "status", None) == status
    assert reader.held_bytes == 0


def test_a_body_in_small_parts_takes_no_more_memory_than_in_large_ones() -> None:
    """A part is an object of fifty bytes, and the bounds count two."""
    num_left = 5_000

    async def receive() -> Any:
        nonlocal num_left
        num_left -= 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(2), "more_body": num_left > 0}

    async def work() -> bytes:
        with Endable() as block:
            return await BodyReader(ServeOptions()).read(
                Request("POST", "/", "", {}, ""), receive, block
            )

    tracemalloc.start()
    try:
        assert asyncio.run(work()) == bytes(10_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000


def test_nothing_is_left_of_a_block_that_is_over() -> None:
    """A connection has many of them, and a deadline may be minutes away."""

    async def work() -> None:
        gone = asyncio.get_running_loop().create_future()
        with Endable() as block:
            timer = block.end_after(30.0, ClientGoneError)
            block.end_without_client(Mock(gone=gone), Mock())
        assert timer.cancelled()
        assert not gone._callbacks
        with Endable() as block:
            block.end_without_client(None, asyncio.Event().wait)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())

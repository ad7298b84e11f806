"""The page at /ui in a real Chromium: what a person does, by mouse and by keyboard.

EMBEDLIB_CONSOLE_SHOTS names a folder for screenshots; docs/images has those of the real MiniLM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.console.conftest import KEY, TEXTS

SHOTS = os.environ.get("EMBEDLIB_CONSOLE_SHOTS")


@pytest.fixture
def page(browser: Any, urls: dict[str, str]) -> Iterator[Any]:
    """A page of a server whose models are loaded; at its end nothing was refused by the policy."""
    yield from open_page(browser, f"{urls['open']}/ui")


def open_page(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1000, "height": 760}, **options)
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    messages: list[str] = []
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    wanted: list[str] = []
    opened.on("request", lambda request: wanted.append(request.url))
    opened.goto(url)
    yield opened
    own = opened.url.rpartition("/")[0]
    assert [each for each in wanted if not each.startswith((own, "data:"))] == []
    context.close()
    assert [each for each in messages if not each.startswith("Failed to load resource")] == []


def until(page: Any, expression: str) -> None:
    """Wait until JavaScript is true; the driver's own wait needs eval, which the policy forbids."""
    for _ in range(1200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came: {expression}")


def wait_ready(page: Any) -> None:
    page.wait_for_selector("#state[data-ok=true]")
    until(page, "document.querySelectorAll('#model option').length > 0")


def shoot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=False)


def run(page: Any) -> None:
    page.evaluate("document.getElementById('facts').textContent = ''")
    page.click("#run")
    until(page, "document.getElementById('facts').textContent.includes('ms')")
    assert page.is_hidden("#error")


def test_similarity(page: Any, urls: dict[str, str]) -> None:
    wait_ready(page)
    page.fill("#texts", "one\ntwo\n<img src=x onerror=alert(1)>")
    run(page)
    cells = page.locator("td.heat").all_text_contents()
    assert len(cells) == 9
    assert [cells[0], cells[4], cells[8]] == ["1.000"] * 3
    assert page.locator("td.best").count() == 2
    assert page.locator("#result img").count() == 0, "a text became an element"
    colours = page.eval_on_selector_all(
        "td.heat", "cells => cells.map(cell => getComputedStyle(cell).backgroundColor)"
    )
    assert len(set(colours)) > 1, "the policy has refused the colours"
    page.click("summary")
    assert f"curl {urls['open']}/v1/embeddings" in page.text_content("#as-curl")
    code = page.text_content("#as-python")
    compile(code, "as-python", "exec")
    assert "client.embeddings.create" in code


def test_rerank_and_classify(page: Any) -> None:
    wait_ready(page)
    page.select_option("#task", "rerank")
    assert page.input_value("#model") == "reranker"
    run(page)
    scores = [float(text) for text in page.locator("#result td:nth-child(2)").all_text_contents()]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    page.fill("#query", "is it true, or null]")
    run(page)
    assert '"query": "is it true, or null]"' in page.text_content("#as-python")
    compile(page.text_content("#as-python"), "as-python", "exec")
    page.select_option("#task", "classify")
    assert page.input_value("#model") == "classifier"
    run(page)
    assert page.locator("#result table").count() == 5
    compile(page.text_content("#as-python"), "as-python", "exec")


def test_an_error_is_told(page: Any) -> None:
    wait_ready(page)
    page.fill("#texts", "")
    page.click("#run")
    page.wait_for_selector("#error:not([hidden])")
    assert "input is empty" in page.text_content("#error")


def test_by_keyboard(page: Any) -> None:
    wait_ready(page)
    page.focus("#texts")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("td.heat")
    page.focus("#tab-play")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#models")
    assert page.evaluate("document.activeElement.id") == "tab-models"
    assert page.locator("#model-table tbody tr").count() == 3
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#live")
    page.keyboard.press("Home")
    assert page.is_visible("#play")


def test_live_counts_what_comes(page: Any, urls: dict[str, str]) -> None:
    wait_ready(page)
    page.click("#tab-live")
    name = page.evaluate("document.getElementById('model').value")
    body = {"model": name, "input": ["a"] * 40}
    assert httpx.post(f"{urls['open']}/v1/embeddings", json=body).status_code == 200
    until(
        page,
        "[...document.querySelectorAll('#lane-table tbody tr')].some(row =>"
        " row.textContent.includes('bulk') && row.lastChild.textContent !== '0')",
    )
    until(page, "document.getElementById('line').getAttribute('points').includes(' ')")
    assert page.locator("#gauges dd").count() == 6


def answer_with(content: Any) -> Any:
    return lambda route: route.fulfill(json=content)


def test_search(page: Any) -> None:
    wait_ready(page)
    page.select_option("#task", "search")
    until(page, "document.querySelectorAll('#collection option').length === 2")
    page.fill("#query", "how do I copy a folder")
    run(page)
    assert set(page.locator("#result td.text").all_text_contents()) == set(TEXTS)
    assert "embed" in page.text_content("#facts")
    compile(page.text_content("#as-python"), "as-python", "exec")
    page.select_option("#collection", "same")
    page.check("#rerank")
    page.fill("#top", "2")
    run(page)
    assert page.locator("#result td.text").count() == 2
    assert '"rerank":true,"collection":"same"' in page.text_content("#as-curl")
    assert "True" in page.text_content("#as-python")


def test_jobs_where_the_server_has_them(browser: Any, urls: dict[str, str]) -> None:
    job = {
        "id": "batch_1",
        "endpoint": "/v1/embeddings",
        "status": "in_progress",
        "created_at": 1,
        "request_counts": {"total": 10, "completed": 3, "failed": 1},
    }
    answers = {
        "/openapi.json": {"paths": {"/v1/batches": {}}},
        "/v1/batches": {"object": "list", "data": [job]},
    }
    for page in open_page(browser, "about:blank"):
        for path, answer in answers.items():
            page.route(re.compile(rf"{path}(\?.*)?$"), answer_with(answer))
        page.goto(f"{urls['open']}/ui")
        wait_ready(page)
        assert page.locator("#task [value=search]").is_hidden()
        page.click("#tab-jobs")
        page.wait_for_selector("#job-table progress")
        assert "4 of 10" in page.text_content("#job-table")
        assert page.evaluate("document.querySelector('progress').value") == 4


def test_a_server_with_a_key(browser: Any, urls: dict[str, str]) -> None:
    for page in open_page(browser, f"{urls['keyed']}/ui"):
        page.wait_for_selector("#error:not([hidden])")
        assert "asks for an API key" in page.text_content("#error")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#error", state="hidden")
        wait_ready(page)
        run(page)
        page.click("summary")
        assert KEY not in page.content().replace(f'value="{KEY}"', "")
        assert "$EMBEDLIB_API_KEY" in page.text_content("#as-curl")
        assert page.evaluate("[sessionStorage.length, localStorage.length]") == [1, 0]
        assert page.context.cookies() == []
        page.reload()
        wait_ready(page)
        assert page.input_value("#key") == KEY


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes(browser: Any, urls: dict[str, str], scheme: str) -> None:
    for page in open_page(browser, f"{urls['open']}/ui", color_scheme=scheme):
        wait_ready(page)
        run(page)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        lightness = sum(int(each) for each in paper[4:-1].split(","))
        assert (lightness > 600) is (scheme == "light")
        shoot(page, f"console-{scheme}")
        if scheme == "light":
            for _ in range(3):
                run(page)
            page.click("#tab-live")
            page.wait_for_timeout(4000 if SHOTS else 0)
            shoot(page, "console-live")


def test_a_narrow_window(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    wait_ready(page)
    run(page)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, "the page scrolls sideways"

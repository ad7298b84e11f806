"""The page at /ui, as far as it shows without a browser; tests/console drives a real one."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from tests.serve.conftest import Client, MakeClient

FILES = ("/ui", "/ui/console.css", "/ui/console.js")


class Page(HTMLParser):
    """Collects what the policy would forbid, and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "href", "action"):
                self.addresses.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")
            if name == "id":
                self.ids.append(value or "")
        if tag == "style" or (tag == "script" and not dict(attributes).get("src")):
            self.inline.append(tag)


def test_the_page_keeps_its_own_policy(client: Client) -> None:
    page = Page(client.send("GET", "/ui").text)
    assert page.inline == []
    assert sorted(page.addresses) == ["data:,", "ui/console.css", "ui/console.js"]
    assert len(page.ids) == len(set(page.ids))
    script = client.send("GET", "/ui/console.js").text
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "localStorage"):
        assert forbidden not in script
    assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= set(page.ids)
    for path in FILES:
        text = client.send("GET", path).text
        assert re.findall(r"https?://|@import|url\(", text) == [], path


def test_files_come_with_the_policy_and_are_not_sent_twice(client: Client) -> None:
    for path, kind in zip(FILES, ("text/html", "text/css", "text/javascript"), strict=True):
        answer = client.send("GET", path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = client.send("GET", path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-length" not in again.headers  # RFC 9110, 8.6: none but that of the file
    assert sum(len(client.send("GET", path).content) for path in FILES) < 40_000


def test_browsers_find_the_page_and_probes_the_health(client: Client) -> None:
    people = client.send("GET", "/", headers={"accept": "text/html,*/*"})
    assert (people.status_code, people.headers["location"]) == (307, "ui")
    assert client.send("GET", "/").json()["status"] == "ok"
    slash = client.send("GET", "/ui/")
    assert (slash.status_code, slash.headers["location"]) == (308, "../ui")


def test_the_page_needs_no_key_but_its_calls_do(make_client: MakeClient) -> None:
    client = make_client(api_keys=("secret",))
    for path in FILES:
        assert client.send("GET", path).status_code == 200
    assert client.send("GET", "/v1/models").status_code == 401
    assert client.send("POST", "/v1/embeddings", {"input": "a"}).status_code == 401

"""Who may reach a server: keys, pages of other origins and names of hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from embedlib.cli import main
from embedlib.errors import (
    ConfigError,
)
from embedlib.serve.app import Application
from embedlib.serve.dialects.dialect import OPENAI
from embedlib.serve.errors import HTTPError
from embedlib.serve.hosts import check_host
from embedlib.serve.keys import Keys, read_keys
from embedlib.testing import FakeEngine
from tests.serve.conftest import Client, MakeClient


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": "Bearer k2"},
        {"authorization": "bearer Bearer k2"},
        {"authorization": "Api-Key k2"},
        {"x-api-key": "k2"},
        {"api-key": "k2"},
        {"authorization": "Bearer k2 "},
        {"authorization": " \tBearer \tk2\t "},
        {"x-api-key": " k2 "},
    ],
)
def test_keys_in_every_spelling(make_client: MakeClient, header: dict[str, str]) -> None:
    client = make_client(api_keys=("k1", " k2\t"))
    assert client.send("POST", "/embed", {"inputs": "a"}, headers=header).status_code == 200


def test_a_missing_or_wrong_key(make_client: MakeClient) -> None:
    client = make_client(api_keys=("secret",))
    for headers, words in (({}, "is missing"), ({"authorization": "Bearer secre"}, "is wrong")):
        answer = client.send("POST", "/v1/embeddings", {"input": "a"}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert words in answer.json()["error"]["message"]
        assert "secret" not in answer.text
    for path in ("/health", "/ready", "/metrics", "/ping", "/openapi.json"):
        assert client.send("GET", path).status_code == 200


@pytest.mark.parametrize(("path", "field"), [("/v1/embeddings", "input"), ("/v1/rerank", "query")])
def test_an_error_is_told_where_voyages_client_reads_it(
    make_client: MakeClient, path: str, field: str
) -> None:
    """Else it takes a wrong key and 429 for a bug of the server, and does not come again."""
    client = make_client(api_keys=("right",))
    for key, status, param in (("right", 400, field), ("wrong", 401, None)):
        answer = client.send("POST", path, {}, headers={"authorization": f"Bearer {key}"})
        error = answer.json()
        assert (answer.status_code, error["error"]["param"]) == (status, param)
        assert error["detail"] == error["error"]["message"]


def test_a_key_of_any_characters(make_client: MakeClient) -> None:
    """curl sends UTF-8, Python's http.client Latin-1."""
    client = make_client(api_keys=("schlüssel", "ключ"))
    for key, encoding in (("schlüssel", "utf-8"), ("schlüssel", "latin-1"), ("ключ", "utf-8")):
        sent: Any = {"authorization": b"Bearer " + key.encode(encoding)}
        assert client.send("GET", "/v1/models", headers=sent).status_code == 200


def test_a_key_behind_many_schemes_costs_no_more_than_one() -> None:
    class Counted(str):
        num_copies = 0

        def partition(self, separator: str, /) -> Any:
            Counted.num_copies += 1
            first, between, rest = super().partition(separator)
            return first, between, Counted(rest)

        def lstrip(self, chars: str | None = None, /) -> str:
            return Counted(super().lstrip(chars))

    with pytest.raises(HTTPError, match="is wrong"):
        Keys(["k"]).check({"authorization": Counted("bearer " * 1000 + "k")})
    assert Counted.num_copies == 2


def test_the_description_asks_for_a_key_where_one_is_needed(make_client: MakeClient) -> None:
    for keys, wanted in (((), []), (("k",), [{"key": []}])):
        paths = make_client(api_keys=keys).send("GET", "/openapi.json").json()["paths"]
        assert paths["/v1/embeddings"]["post"]["security"] == wanted
        assert ("401" in paths["/v1/embeddings"]["post"]["responses"]) is bool(keys)
        assert paths["/health"]["get"]["security"] == []


def test_who_may_be_reached_by_anybody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedlib.serve.http.server.serve", lambda *_: None)
    for host, keys, is_warned in (
        ("127.0.0.1", "", False),
        ("0.0.0.0", "", True),
        ("0.0.0.0", "k1,k2", False),
    ):
        monkeypatch.setenv("EMBEDLIB_API_KEYS", keys)
        command = ["serve", "model", "--host", host]
        told = CliRunner().invoke(main, command, catch_exceptions=False).stderr
        assert (f"Warning: anybody who reaches http://{host}:8080 may use it" in told) is is_warned


def test_pages_of_other_origins_are_not_let_in(client: Client) -> None:
    origin = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    asked = client.send("OPTIONS", "/v1/embeddings", headers=origin)
    assert asked.status_code == 405
    sent = client.send("POST", "/v1/embeddings", {"input": "a"}, headers=origin)
    for answer in (asked, sent):
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain;charset=UTF-8", "multipart/form-data; boundary=x", ""),
        "Application/X-WWW-Form-Urlencoded",
    ],
)
def test_what_a_page_of_another_site_sends_unasked_is_refused(
    kind: str, client: Client, engine: FakeEngine
) -> None:
    """Browsers ask before they send JSON or a key to another site, and here get no permission."""

    def status(site: str, kind: str, **headers: str) -> int:
        sent = {"sec-fetch-site": site, "content-type": kind, **headers}
        return client.send("POST", "/embed", b'{"inputs": "a"}', headers=sent).status_code

    before = len(engine.batches)
    assert status("cross-site", kind) == 403
    assert len(engine.batches) == before
    assert status("same-origin", kind) == 200
    assert status("cross-site", "application/json") == 200
    assert status("cross-site", kind, authorization="Bearer k") == 200
    assert status("cross-site", kind, **{"x-api-key": "k"}) == 200
    page = client.send("GET", "/ui", headers={"sec-fetch-site": "cross-site"})  # a link to it
    assert page.status_code == 200


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nk1\n\n k2 \n")
    assert read_keys(path) == ("k1", "k2")
    path.write_text("k1\n  # indented\n", encoding="utf-8-sig")
    assert read_keys(path) == ("k1",)
    path.write_text("# none\n")
    with pytest.raises(ConfigError, match="has no API key"):
        read_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "other")
    Keys(()).check({})


def test_the_header_host() -> None:
    for host in ("localhost:80", "127.0.0.1", "[::1]:8080", "LOCALHOST"):
        check_host("POST", host, ("localhost", "127.0.0.1", "::1"))
    with pytest.raises(HTTPError, match=r"evil\.example' is not served here") as refused:
        check_host("GET", "evil.example", ("localhost",))
    assert OPENAI.respond(refused.value).status == 421
    check_host("POST", "evil.example", None)
    check_host("POST", "api.example", ("API.example",))
    for address in ("10.1.2.3:8080", "127.0.0.1", "[fd00::1]:8080"):  # probes of Kubernetes, Docker
        for method in ("GET", "HEAD"):
            check_host(method, address, ("api.example",))
        with pytest.raises(HTTPError, match="is not served here"):  # a page may send it
            check_host("POST", address, ("api.example",))
    with pytest.raises(HTTPError, match="is not served here"):
        check_host("GET", "10.1.2.3.example", ("api.example",))


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ((), ("localhost", "127.0.0.1", "::1", "127.0.0.1")),
        (
            ("--allow-host", "api.example"),
            ("localhost", "127.0.0.1", "::1", "127.0.0.1", "api.example"),
        ),
        (("--host", "0.0.0.0"), None),
        (("--host", "0.0.0.0", "--allow-host", "api.example"), ("api.example",)),
    ],
)
def test_an_allowed_host_is_added_to_those_of_a_loopback_address(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], allowed: tuple[str, ...] | None
) -> None:
    served: list[Application] = []
    monkeypatch.setattr(
        "embedlib.serve.http.server.serve", lambda application, *_: served.append(application)
    )
    assert CliRunner().invoke(main, ["serve", "model", *given]).exit_code == 0
    assert served[0].options.allowed_hosts == allowed

"""Token ids in the place of texts: refused, or taken as ids of the model's own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from embedlib import Embedder
from embedlib.cli import main
from embedlib.errors import ConfigError
from embedlib.serve import ServeOptions
from embedlib.serve.app import Application
from embedlib.testing import fake_embedder, write_tiny_model
from tests.serve.conftest import Client, MakeClient
from tests.serve.test_dialects import rows_of, unit

WORDS = [list(b"a"), list(b"bc")]


@pytest.fixture
def taking(make_client: MakeClient) -> Client:
    """A server that takes token ids, in front of a tokenizer of bytes."""
    return make_client(
        {"embed": fake_embedder(prompts={"query": "Q:", "document": ""})}, token_ids=True
    )


def test_they_are_refused_with_both_remedies(client: Client) -> None:
    for path, field in (("/v1/embeddings", "input"), ("/embed", "inputs")):
        for given in ([1, 2], [[1, 2], [3]]):
            _, error = client.refuse(path, {field: given})
            assert "check_embedding_ctx_length=False" in str(error)
            assert "--token-ids" in str(error)


@pytest.mark.parametrize("num_texts", [1, 2, 100])
def test_they_are_embedded_as_they_are(taking: Client, num_texts: int) -> None:
    ids = [WORDS[index % 2] for index in range(num_texts)]
    answer = taking.post("/v1/embeddings", {"input": ids})
    rows = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
    assert (rows == rows_of([bytes(each).decode() for each in ids])).all()
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert np.allclose(taking.post("/embed", {"inputs": ids}), unit(rows))


def test_a_list_of_ids_is_one_text(taking: Client) -> None:
    [entry] = taking.post("/v1/embeddings", {"input": [98, 99]})["data"]
    assert entry["embedding"] == rows_of(["bc"])[0].tolist()
    for text in ("bc", {"text": "bc"}):  # texts are as they were
        assert taking.post("/v1/embeddings", {"input": [text]})["data"] == [entry]


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ([97, 256], 400, "text 0 has the token id 256, which is out of vocabulary; send ids of"),
        ([[97], [1 << 40]], 400, "text 1 has the token id 1099511627776"),
        ([[97], [-1]], 400, "text 1 has the token id -1"),
        ([[97], []], 400, "text 1 has no token ids; leave it out"),
        ([97] * 33, 400, "row 0: 33 tokens), the limit is 32; token ids are not truncated"),
        ([97, [98]], 400, "input: give a list of token ids, or of lists of them"),
        (["a", [98]], 400, "input[1] is token ids"),
        ([{"text": "a"}, 98], 400, "input[1] is token ids"),
        ([], 400, "input is empty"),
        ([[97]] * 4, 413, "input has 4 texts, the limit is 3"),
    ],
)
def test_what_is_wrong_with_them_is_told(
    make_client: MakeClient, given: Any, status: int, message: str
) -> None:
    client = make_client({"embed": fake_embedder()}, token_ids=True, max_texts=3)
    found, error = client.refuse("/v1/embeddings", {"input": given})
    assert found == status
    assert message in error["error"]["message"]
    assert error["error"]["param"] == "input"


def test_they_have_no_prompt(taking: Client) -> None:
    for role, status in (("query", 400), ("document", 200), (None, 200)):
        body = {"input": [97], "input_type": role}
        answer = taking.send("POST", "/v1/embeddings", body)
        assert answer.status_code == status, answer.text
    status, error = taking.refuse("/embed", {"inputs": [97], "prompt_name": "query"})
    assert "token ids are embedded as they are, without the prompt 'Q:'" in error["error"]


def test_outputs_of_tokens_take_texts(taking: Client) -> None:
    status, error = taking.refuse("/embed_all", {"inputs": [97]})
    assert (status, error["error_type"]) == (422, "Validation")
    assert "is token ids; send texts" in error["error"]


def test_ids_of_the_route_that_tokenizes(make_client: MakeClient, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", "bert")
    client = make_client({"tiny": str(folder)}, token_ids=True)
    texts = ["Hello world", "x"]
    rows = client.post("/tokenize", {"inputs": texts})
    ids = [[token["id"] for token in row] for row in rows]
    start, word = rows[0][:2]
    assert (start["special"], start["start"], start["stop"]) == (True, None, None)
    assert (word["special"], word["start"], word["stop"]) == (False, 0, len(word["text"]))
    assert texts[0].startswith(word["text"])  # as written, and not as the vocabulary has it
    bare = client.post("/tokenize", {"inputs": texts[0], "add_special_tokens": False})
    assert [token["id"] for token in bare[0]] == ids[0][1:-1]
    [plain] = client.post("/decode", {"ids": ids[0]})
    [whole] = client.post("/decode", {"ids": ids[0], "skip_special_tokens": False})
    assert (start["text"] in plain, start["text"] in whole) == (False, True)
    assert client.post("/detokenize", {"tokens": ids[0]}) == {"prompt": whole}
    answer = client.post("/v1/embeddings", {"input": ids})
    with Embedder(folder) as own:
        assert np.allclose([e["embedding"] for e in answer["data"]], own.encode(texts), atol=1e-6)


def test_the_option_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Application] = []
    monkeypatch.setattr("embedlib.serve.http.server.serve", lambda app, *_: served.append(app))
    for option in ([], ["--token-ids"]):
        CliRunner().invoke(main, ["serve", "model", *option], catch_exceptions=False)
    assert [app.options.token_ids for app in served] == [False, True]
    with pytest.raises(ConfigError, match="token_ids"):
        ServeOptions(token_ids=1)  # type: ignore[arg-type]

"""Every option of every public method refuses values of another type, in one line."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embedlib import Classifier, Embedder, Reranker
from embedlib.errors import ConfigError
from embedlib.models.spec import Head
from embedlib.session.base import Session
from embedlib.session.checked import INPUTS, KINDS, checked
from embedlib.testing import FakeEngine, byte_tokenizer, fake_spec
from tests.odd_values import ODD_VALUES

EXEMPT = {
    "from_engine",  # for engines of one's own: its arguments are objects, and config checks itself
    "fingerprint_in",  # its precision is that of the Config, which checks it; see below
    "similarity",  # vectors, which are inputs
    "similarity_pairwise",
}
ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("text", "query"), "a"),
    **{name: ["a", "b"] for name in ("inputs", "texts", "documents", "candidate_labels")},
    "role": "query",
}
BAD_VALUES = (*ODD_VALUES, Head)


def public_methods(kind: type[Session]) -> list[str]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in found if not name.startswith("_") and name not in EXEMPT]


def parameters(kind: type[Session], method: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(kind, method)).parameters.values())[1:]


OPTIONS = [
    pytest.param(kind, method, item.name, id=f"{kind.__name__}.{method}.{item.name}")
    for kind in (Embedder, Reranker, Classifier)
    for method in public_methods(kind)
    for item in parameters(kind, method)
    if item.name not in INPUTS
]


@pytest.fixture(scope="module")
def sessions() -> Iterator[dict[type[Session], Session]]:
    made: dict[type[Session], Session] = {}
    for kind in (Embedder, Reranker, Classifier):
        head = Head(labels=("score",), activation="identity", reranker_activation="sigmoid")
        spec = fake_spec(64, head=None if kind is Embedder else head)
        made[kind] = kind.from_engine(FakeEngine(), spec, byte_tokenizer())
    yield made
    for session in made.values():
        session.close()


def call(session: Session, method: str, options: dict[str, Any]) -> None:
    required = {
        item.name: ARGUMENTS[item.name]
        for item in parameters(type(session), method)
        if item.default is item.empty and item.name not in options
    }
    result = getattr(session, method)(**required, **options)
    if inspect.isawaitable(result):
        asyncio.run(_wait(result))


async def _wait(result: Any) -> None:
    await result


@pytest.mark.parametrize(("kind", "method", "option"), OPTIONS)
def test_every_option_has_a_kind_that_is_checked(
    sessions: dict[type[Session], Session], kind: type[Session], method: str, option: str
) -> None:
    refused = [value for value in BAD_VALUES if not KINDS[option].accepts(value)]
    assert len(refused) > len(BAD_VALUES) / 2
    for value in refused:
        with pytest.raises(ConfigError) as caught:
            call(sessions[kind], method, {option: value})
        message = str(caught.value)
        assert message.startswith(f"{option} = ")
        assert "; it must be " in message
        assert "\n" not in message


@pytest.mark.parametrize("value", ["false", "no", 0, 1, np.int8(1)])
def test_a_switch_in_words_is_refused(
    sessions: dict[type[Session], Session], value: object
) -> None:
    with pytest.raises(ConfigError, match=r"^normalize_embeddings = .*; it must be True or False$"):
        call(sessions[Embedder], "encode", {"inputs": ["a"], "normalize_embeddings": value})


def test_options_by_position_and_switches_of_numpy(
    sessions: dict[type[Session], Session],
) -> None:
    embedder: Any = sessions[Embedder]
    with pytest.raises(ConfigError, match="show_progress_bar = 'no'; it must be True, False or N"):
        embedder.encode(["a"], None, None, 32, "no")
    plain = embedder.encode(["a"], normalize_embeddings=True)
    of_numpy = embedder.encode(["a"], normalize_embeddings=np.True_, truncate_dim=np.int64(6))
    np.testing.assert_array_equal(of_numpy, plain)


@pytest.mark.parametrize("method", ["encode_query", "aencode_query", "encode_document"])
def test_the_role_in_a_name_is_not_overridden(
    sessions: dict[type[Session], Session], method: str
) -> None:
    other = "document" if "query" in method else "query"
    with pytest.raises(ConfigError, match=f"^role = '{other}'; it must be '.*' here, or left out"):
        call(sessions[Embedder], method, {"inputs": "a", "role": other})


@pytest.mark.parametrize("value", ["int4", np.array("int8"), 1.5])
def test_a_precision_that_does_not_exist_has_no_fingerprint(
    sessions: dict[type[Session], Session], value: Any
) -> None:
    embedder: Any = sessions[Embedder]
    assert embedder.fingerprint_in("int8") is None
    with pytest.raises(ConfigError, match=r"precision = .*; it must be one of auto, "):
        embedder.fingerprint_in(value)


def test_a_method_with_an_option_that_has_no_kind_cannot_be_written() -> None:
    def encode(self: object, inputs: str, prefix: str = "") -> None: ...

    with pytest.raises(TypeError, match="encode: KINDS lacks prefix"):
        checked(encode)


def test_a_config_is_checked_where_an_engine_is_given() -> None:
    options: Any = {"config": {"threads": 2}}
    with pytest.raises(ConfigError, match=r"^config = {'threads': 2}; it must be a Config"):
        Embedder.from_engine(FakeEngine(), fake_spec(), byte_tokenizer(), **options)


def test_trust_remote_code_is_a_switch() -> None:
    with pytest.raises(ConfigError, match=r"^trust_remote_code = 'no'; it must be True or False$"):
        Embedder("a", trust_remote_code="no")  # type: ignore[arg-type]

"""Vectors made elsewhere: by the same model, called otherwise, and by something else."""

from __future__ import annotations

import io
import json
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from email.message import Message
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import OpenerDirector

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib import Config, Embedder
from embedlib.errors import ConfigError, EngineUnsupportedError, SourceError
from embedlib.matching import server as server_module
from embedlib.matching import setting
from embedlib.matching.diagnosis import are_other_rows, what_they_may_be
from embedlib.matching.match import Match, SettingSearch, match
from embedlib.matching.server import SECONDS, Server
from embedlib.matching.setting import Prompt
from embedlib.matching.theirs import MAX_TEXTS, Theirs, read_theirs, sample
from embedlib.models.compiled.fidelity_report import Gate
from embedlib.models.known_models import KnownModel
from embedlib.models.spec import Module, Normalize, Pooling, RoundTanh
from embedlib.testing import FakeEngine, byte_tokenizer, fake_spec
from embedlib.vectors.similarity import normalize

TEXTS = tuple(
    " ".join(["token", "river", "city", "model", "text"][row % 5 :] * (1 + row // 2))
    for row in range(12)
)
"""The longest have more than 24 tokens, the limit of the model's files."""
Vectors = NDArray[np.float32]


@pytest.fixture(scope="module")
def embedder(tiny_folder: Callable[[str], Path]) -> Iterator[Embedder]:
    prompts = {"query": "search the city: ", "document": "read: "}
    options: Any = {"prompts": prompts, "threads": 1, "on_truncate": "ignore"}
    with Embedder(tiny_folder("bert"), precision="float32", **options) as opened:
        yield opened


def compared(
    embedder: Embedder, vectors: Vectors, *, normalizes: bool = False, prompt: Prompt | None = None
) -> Match:
    asked = prompt or Prompt.literal("")
    theirs = Theirs(TEXTS, vectors)
    before = embedder.max_seq_length
    result = match(embedder, theirs, asked, normalizes=normalizes, gate=Gate())
    assert embedder.max_seq_length == before
    return result


def with_limit(embedder: Embedder, limit: int, **arguments: Any) -> Vectors:
    before = embedder.max_seq_length
    embedder.max_seq_length = limit
    try:
        vectors: Vectors = embedder.encode(TEXTS, **arguments)
    finally:
        embedder.max_seq_length = before
    return vectors


def test_the_same(embedder: Embedder) -> None:
    result = compared(embedder, embedder.encode(TEXTS, prompt=""))
    assert result.is_same
    assert result.differences == ()
    # Numbers of 16 bits are those of the same model.
    narrow = embedder.encode(TEXTS, prompt="").astype(np.float16).astype(np.float32)
    assert compared(embedder, narrow).is_same


@pytest.mark.parametrize(
    ("arguments", "differences"),
    [
        ({"prompt_name": "query"}, ("prompt_name='query' ('search the city: ')",)),
        ({"prompt": "query: "}, ("prompt 'query: '",)),
        ({"truncate_dim": 16, "prompt": ""}, ("truncate_dim=16",)),
        (
            {"truncate_dim": 16, "prompt_name": "document"},
            ("truncate_dim=16", "prompt_name='document' ('read: ')"),
        ),
    ],
)
def test_another_prompt_or_dimension(
    embedder: Embedder, arguments: dict[str, Any], differences: tuple[str, ...]
) -> None:
    result = compared(embedder, embedder.encode(TEXTS, **arguments))
    assert not result.is_same
    assert result.differences == differences


def test_a_model_whose_shorter_vectors_are_made_otherwise() -> None:
    known = KnownModel(truncation="layer_norm")  # nomic-embed-text-v1.5
    options = Config(on_truncate="ignore")
    with Embedder.from_engine(
        FakeEngine(), fake_spec(), byte_tokenizer(), options, known=known
    ) as fake:
        assert compared(fake, fake.encode(TEXTS)).is_same
        shorter = compared(fake, fake.encode(TEXTS, truncate_dim=4))
        assert (shorter.is_same, shorter.differences) == (False, ("truncate_dim=4",))


def test_a_single_text(embedder: Embedder) -> None:
    theirs = Theirs(TEXTS[:1], embedder.encode(TEXTS[:1], prompt="query: "))
    result = match(embedder, theirs, Prompt.literal(""), normalizes=False, gate=Gate())
    assert result.differences == ("prompt 'query: '",)


def test_no_prompt_where_one_was_asked_for(embedder: Embedder) -> None:
    asked = Prompt(arguments={"role": "document"}, said="role='document'")
    result = compared(embedder, embedder.encode(TEXTS, prompt=""), prompt=asked)
    assert result.differences == ("no prompt",)


def test_another_length(embedder: Embedder) -> None:
    result = compared(embedder, with_limit(embedder, 48, prompt=""))
    assert result.differences == ("max_seq_tokens=48",)
    result = compared(embedder, with_limit(embedder, 48, prompt_name="document"))
    assert result.differences == ("prompt_name='document' ('read: ')", "max_seq_tokens=48")
    asked = Prompt(arguments={"role": "document"}, said="role='document'")
    result = compared(embedder, with_limit(embedder, 48, role="document"), prompt=asked)
    assert result.differences == ("max_seq_tokens=48",)
    result = compared(embedder, with_limit(embedder, 11, prompt=""))
    assert result.differences == ("max_seq_tokens=11",)
    odd = embedder.encode(TEXTS, prompt="")
    odd[-2:] = odd[:2]
    hint = compared(embedder, odd).hint
    assert "no prompt gives the short texts, and no length limit the long ones" in hint


class Counting:
    """In place of a `Maker`: vectors that say how many tokens of a text are kept."""

    def __init__(self, num_tokens: list[int]) -> None:
        self.num_tokens = num_tokens
        self.num_made = 0

    def vectors(self, setting: setting.Setting, rows: Sequence[int]) -> Vectors:
        self.num_made += 1
        kept = [min(setting.max_tokens, self.num_tokens[row]) for row in rows]
        return (np.arange(512) < np.array(kept)[:, None]).astype(np.float32)

    def own_prompts(self) -> list[Prompt]:
        return []

    def limits(self, rows: Sequence[int]) -> list[int]:
        return [128, 256]

    def cutting_limits(self, row: int) -> range:
        return range(3, self.num_tokens[row] + 1)


@pytest.mark.parametrize("limit", [120, *range(149, 154), 160, 201])
def test_a_length_at_which_nobody_cuts_is_found_by_few_vectors(limit: int) -> None:
    maker = Counting([4, 5, 6, 300, 400])
    asked = setting.Setting(prompt=Prompt.literal(""), max_tokens=512)
    vectors = maker.vectors(replace(asked, max_tokens=limit), range(5))
    theirs = Theirs(tuple("x" * num for num in maker.num_tokens), vectors)
    result = SettingSearch(cast(setting.Maker, maker), theirs, asked, Gate()).run(())
    assert result.differences == (f"max_seq_tokens={limit}",)
    assert maker.num_made < 60


def test_a_length_that_is_reached_with_the_prompt_alone(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(len(embedder.tokenizer.encode(text).ids) for text in TEXTS)
    # The first is more than the model takes.
    monkeypatch.setattr(setting, "LIMITS", (2 * longest - 1, longest + 2))
    result = compared(embedder, with_limit(embedder, longest + 2, prompt_name="query"))
    prompt = "prompt_name='query' ('search the city: ')"
    assert result.differences == (prompt, f"max_seq_tokens={longest + 2}")


def test_texts_without_their_beginning(embedder: Embedder) -> None:
    def made(prompt: str) -> Vectors:
        vectors = []
        for text in TEXTS:
            found = embedder.tokenizer.encode(text, add_special_tokens=False)
            end = text[found.offsets[max(0, len(found.ids) - 22)][0] :]
            vectors.append(embedder.encode(end, prompt=prompt if end == text else ""))
        return np.stack(vectors)

    difference = "max_seq_tokens=24, long texts without their beginning"
    assert compared(embedder, made("")).differences == (difference,)
    result = compared(embedder, made("read: "))
    assert result.differences == ("prompt_name='document' ('read: ')", difference)


def test_another_pooling(embedder: Embedder) -> None:
    tokens = embedder.encode(TEXTS, prompt_name="query", output_value="token_embeddings")
    result = compared(embedder, normalize(np.stack([each[0] for each in tokens])))
    assert result.differences == (
        "prompt_name='query' ('search the city: ')",
        "cls pooling in place of the model's",
    )


def test_another_pooling_of_a_model_that_does_not_normalize(
    tiny_folder: Callable[[str], Path],
) -> None:
    options: Any = {"threads": 1, "on_truncate": "ignore", "precision": "float32"}
    with Embedder(tiny_folder("bert-bare"), **options) as bare:
        tokens = bare.encode(TEXTS, output_value="token_embeddings")
        for name, place in (("cls", 0), ("last_token", -1)):
            vectors = np.stack([each[place] for each in tokens])
            for made, normalizes in ((vectors, False), (normalize(vectors), True)):
                result = compared(bare, made, normalizes=normalizes)
                assert result.differences == (f"{name} pooling in place of the model's",)


def test_which_poolings_are_tried() -> None:
    def tried(*modules: Module, is_table: bool = False, error: Exception | None = None) -> Any:
        def encode(*_: object, **__: object) -> None:
            if error is not None:
                raise error

        encoder = SimpleNamespace(is_table=is_table)
        spec = SimpleNamespace(modules=modules, encoder=encoder, pooling=modules[0])
        embedder: Any = SimpleNamespace(spec=spec, encode=encode)
        return setting.Maker(embedder, (), 1, normalizes=False).poolings()

    mean = Pooling(modes=("mean",))
    assert tried(mean) == tried(mean, Normalize()) == ["cls", "last_token"]
    assert tried(Pooling(modes=("cls",))) == ["mean", "last_token"]
    assert tried(replace(mean, modes=("mean", "cls"))) == []
    assert tried(replace(mean, include_prompt=False)) == []
    assert tried(mean, RoundTanh()) == []
    assert tried(mean, is_table=True) == []
    assert tried(mean, error=EngineUnsupportedError("no vectors of tokens")) == []
    np.testing.assert_array_equal(setting._pool(np.float32([[1, 2], [3, 4]]), "mean"), [2, 3])


def test_prompts_of_known_models(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, Any]] = [
        {"prompts": {"query": "a: ", "document": "b: "}},
        {"prompts": {"query": "b: "}},
        {"query_template": "to {task}: {text}", "default_task": "find"},
        {"query_template": "to {task}: {text}!", "default_task": "rank"},
    ]
    monkeypatch.setattr(setting, "read_entries", lambda: entries)
    assert setting.known_prompts() == ["a: ", "b: ", "to find: "]


def test_another_length_of_vectors(embedder: Embedder, tiny_folder: Callable[[str], Path]) -> None:
    unit = embedder.encode(TEXTS, prompt="")
    for scale in (3, 1.02):
        result = compared(embedder, scale * unit)
        assert result.differences == ("their vectors scaled to unit length",)
    assert compared(embedder, np.rint(1000 * unit)).is_same, "codes have no length"
    result = compared(embedder, 3 * embedder.encode(TEXTS, prompt="query: "))
    assert result.differences == ("prompt 'query: '", "their vectors scaled to unit length")
    options: Any = {"threads": 1, "on_truncate": "ignore", "precision": "float32"}
    with Embedder(tiny_folder("bert-bare"), **options) as bare:
        vectors = bare.encode(TEXTS, normalize_embeddings=True)
        assert compared(bare, vectors).differences == ("normalize_embeddings=True",)
        assert compared(bare, vectors, normalizes=True).is_same
        result = compared(bare, 3 * bare.encode(TEXTS))
        assert result.differences == ("their vectors scaled to the lengths of the model's",)


def test_something_else(embedder: Embedder) -> None:
    right = embedder.encode(TEXTS, prompt="")
    result = compared(embedder, np.random.default_rng(1).normal(size=right.shape).astype("f4"))
    assert (result.is_same, result.differences) == (False, ())
    assert "another model, revision or tokenizer" in result.hint
    noise = np.random.default_rng(0).normal(0, 0.02, right.shape).astype(np.float32)
    assert "near, as of another precision" in compared(embedder, right + noise).hint
    assert "codes of a lower precision" in compared(embedder, np.rint(5 * right)).hint
    assert "they are zeros alone" in compared(embedder, np.zeros_like(right)).hint
    result = compared(embedder, np.zeros((len(TEXTS), 33), np.float32))
    assert (result.is_same, result.cosines.any()) == (False, False)
    assert "33 numbers, and the model makes 32" in result.hint


def test_texts_that_were_not_made_alike(embedder: Embedder) -> None:
    mixed = embedder.encode(TEXTS, prompt="")
    mixed[::3] = embedder.encode(TEXTS[::3], prompt_name="query")
    hint = compared(embedder, mixed).hint
    assert hint == (
        "the texts were not made alike; of 6: 3 with no prompt, "
        "3 with prompt_name='query' ('search the city: ')"
    )


def test_more_numbers_than_were_asked_for(tiny_folder: Callable[[str], Path]) -> None:
    options: Any = {"threads": 1, "on_truncate": "ignore", "precision": "float32"}
    with Embedder(tiny_folder("bert"), truncate_dim=8, **options) as narrow:
        for dim, difference in ((32, "no truncate_dim"), (16, "truncate_dim=16")):
            result = compared(narrow, narrow.encode(TEXTS, prompt="", truncate_dim=dim))
            assert (result.is_same, result.differences) == (False, (difference,))
        assert compared(narrow, narrow.encode(TEXTS, prompt="")).is_same


def turned(vectors: Vectors, cosine: float) -> Vectors:
    """Return unit vectors that have this cosine to those given."""
    other = np.random.default_rng(2).normal(size=vectors.shape)
    other -= (other * vectors).sum(1, keepdims=True) * vectors
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    return (cosine * vectors + np.sqrt(1 - cosine**2) * other).astype(np.float32)


def test_near_vectors(embedder: Embedder) -> None:
    right = embedder.encode(TEXTS, prompt="")
    near = "near, as of another precision or revision of the model"
    # Above the gate's 1st percentile, and below its mean.
    assert compared(embedder, turned(right, 0.9985)).hint == near
    # The short texts alone pass.
    by_length = np.argsort([len(text) for text in TEXTS], kind="stable")
    uneven = turned(right, 0.9992)
    uneven[by_length[6:]] = turned(right, 0.9981)[by_length[6:]]
    assert compared(embedder, uneven).hint == near
    # One row is far off, and the others are near, not the same.
    uneven = turned(right, 0.9985)
    uneven[3] = turned(right, 0.9)[3]
    assert compared(embedder, uneven).hint == near
    query = turned(embedder.encode(TEXTS, prompt="query: "), 0.9985)
    assert compared(embedder, query).hint == f"with prompt 'query: ': {near}"
    short = turned(embedder.encode(TEXTS, prompt="", truncate_dim=16), 0.9985)
    assert compared(embedder, short).hint == f"with truncate_dim=16: {near}"


def test_rows_of_other_texts(embedder: Embedder) -> None:
    right = embedder.encode(TEXTS, prompt="")
    stale = right.copy()
    stale[2], stale[5] = right[7], 0
    assert compared(embedder, stale).hint == (
        f"10 of 12 texts are the same; these are not: {TEXTS[2]!r} (the vector of another row), "
        f"{repr(TEXTS[5])[:40]} (zeros)"
    )
    long = int(np.argsort([len(text) for text in TEXTS], kind="stable")[8])  # longer ones are right
    stale = right.copy()
    stale[long] = right[1]
    assert compared(embedder, stale).hint.startswith("11 of 12 texts are the same; these are not: ")
    for vectors in (right, embedder.encode(TEXTS, prompt_name="query")):
        hint = compared(embedder, np.roll(vectors, 1, axis=0)).hint
        assert hint.startswith("the vectors are those of other rows")


def of_cosines(*cosines: float) -> tuple[Vectors, Theirs]:
    """Return vectors that are orthogonal to each other, and others with these cosines to them."""
    count = len(cosines)
    ours, aside = np.eye(count, 2 * count, dtype="f4"), np.eye(count, 2 * count, count, dtype="f4")
    cosine = np.array(cosines, np.float32)[:, None]
    texts = tuple(f"text {row}" for row in range(count))
    return ours, Theirs(texts, cosine * ours + np.sqrt(1 - cosine**2) * aside)


@pytest.mark.parametrize(
    ("cosines", "told"),
    [
        # One that is right may lie between the two figures of the gate.
        ([0.9999] * 10 + [0.9985, 0.5], "11 of 12 texts are the same; these are not: 'text 11'"),
        # The next one is as near: nothing sets it apart.
        ([0.9999] * 10 + [0.9981, 0.9975], "near, as of another precision or revision of the"),
        ([1.0] * 15 + [0.1] * 5, "15 of 20 .* not: 'text 15', 'text 16', 'text 17', 2 more"),
        ([1.0] * 17 + [0.1] * 3, "17 of 20 .* not: 'text 17', 'text 18', 'text 19'$"),
        ([1.0] * 8 + [0.96] * 4, "near, as of another"),  # too many
        ([0.97] * 12, "$"),
    ],
)
def test_what_vectors_may_be(cosines: list[float], told: str) -> None:
    assert re.match(told, what_they_may_be(*of_cosines(*cosines), Gate()))


def test_how_many_vectors_of_other_rows_are_a_sign() -> None:
    def is_sign(moved: int, count: int, scale: float = 1) -> bool:
        ours, theirs = of_cosines(*[1.0] * count)
        vectors = scale * theirs.vectors
        vectors[:moved] = scale * ours[-1]
        return are_other_rows(scale * ours, replace(theirs, vectors=vectors), Gate())

    assert not is_sign(1, 4)
    assert is_sign(2, 4)
    assert is_sign(2, 4, 0.5)
    assert not is_sign(3, 32)
    assert is_sign(4, 32)
    twice = np.ones((4, 2), np.float32)
    assert not are_other_rows(twice, Theirs(("a",) * 4, twice), Gate()), "the same text twice"


def test_a_blank_text_whose_vector_differs(embedder: Embedder) -> None:
    texts = (*TEXTS, " " * 400)
    vectors = embedder.encode(texts, prompt="")
    vectors[-1] = turned(vectors[-1:], 0.5)
    result = match(
        embedder, Theirs(texts, vectors), Prompt.literal(""), normalizes=False, gate=Gate()
    )
    assert result.hint.startswith("12 of 13 texts are the same; these are not: '   ")


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_files(tmp_path: Path) -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = [{"t": f"text {row}", "embedding": vectors[row].tolist()} for row in range(3)]
    found = read_theirs(write_jsonl(tmp_path / "a.jsonl", rows), None, "t")
    assert found.texts == ("text 0", "text 1", "text 2")
    np.testing.assert_array_equal(found.vectors, vectors)
    assert found.are_whole
    np.save(tmp_path / "b.npy", vectors)
    (tmp_path / "b.txt").write_text("one\n\nthree\n")
    assert read_theirs(tmp_path / "b.npy", tmp_path / "b.txt", "text").texts == ("one", "", "three")
    write_jsonl(tmp_path / "b.npy.rows.jsonl", [{"text": row["t"]} for row in rows])
    assert read_theirs(tmp_path / "b.npy", None, "text").texts == found.texts
    assert read_theirs(tmp_path / "b.npy", tmp_path / "a.jsonl", "t").texts == found.texts


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="reading Parquet needs the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the same")
    table = pyarrow.table({"text": ["a", "b"], "embedding": [[0.5, 1.0], [2.0, 3.0]], "id": [1, 2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read_theirs(tmp_path / "a.parquet", None, "text").vectors.tolist() == [[0.5, 1], [2, 3]]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("a.jsonl", [{"x": "a"}], "line 1 of .*has no text in 'text'; its fields are: 'x'"),
        ("a.jsonl", [{"text": "a"}], "'embedding' is None; a list of numbers"),
        ("a.jsonl", [{"text": "a", "embedding": ["1"]}], "a list of numbers"),
        ("a.jsonl", [{"text": "a", "embedding": [1, "1"]}], "a list of numbers"),
        ("a.jsonl", [{"text": "a", "embedding": []}], "a list of numbers"),
        ("a.jsonl", [{"text": "a", "embedding": [True]}], "a list of numbers"),
        ("a.jsonl", [{"text": 5}], "line 1 of .*has no text in 'text'"),
        ("a.jsonl", [{}], "its fields are: none;"),
        ("a.jsonl", [[]], "line 1 of .* is a JSON list"),
        ("a.jsonl", [{"text": "a", "embedding": [10**400]}], "line 1 of .* that is too large"),
        ("a.jsonl", [{"text": "a", "embedding": [1e300]}], "with NaN or infinity"),
        (
            "a.jsonl",
            [{"text": "a", "embedding": numbers} for numbers in ([1.0], [2.0], [1.0, 2])],
            "line 3 of .* has 2 numbers, the first one 1",
        ),
        ("a.jsonl", [], "has no vector"),
        ("a.csv", [], "are read from .jsonl, .parquet and .npy"),
    ],
)
def test_other_files(tmp_path: Path, name: str, rows: list[Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_theirs(write_jsonl(tmp_path / name, rows), None, "text")


def test_texts_of_many_vectors_are_counted_and_not_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((20_000, 40)))
    (tmp_path / "a.txt").write_text("".join(f"{number:0200}\n" for number in range(20_000)))
    tracemalloc.start()
    try:
        theirs = read_theirs(tmp_path / "a.npy", tmp_path / "a.txt", "text")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(theirs.texts) == MAX_TEXTS
    assert most < 2 << 20


def test_vectors_and_texts_that_do_not_belong_together(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(SourceError, match=r"2 vectors, and .* 1 texts"):
        read_theirs(tmp_path / "a.npy", tmp_path / "a.txt", "text")
    with pytest.raises(SourceError, match=r"x\.npy: cannot be read as \.npy: .*No such file"):
        read_theirs(tmp_path / "x.npy", tmp_path / "a.txt", "text")
    with pytest.raises(SourceError, match=rf"^{tmp_path / 'x.jsonl'} No such file"):
        read_theirs(tmp_path / "x.jsonl", None, "text")
    with pytest.raises(SourceError, match=r"no such file; name the texts .* --texts"):
        read_theirs(tmp_path / "a.npy", None, "text")
    with pytest.raises(SourceError, match=rf"^{tmp_path} Is a directory$"):
        read_theirs(tmp_path / "a.npy", tmp_path, "text")
    for shape, dtype in (((2, 3), "uint8"), ((2,), "float32"), ((2, 0), "float64")):
        np.save(tmp_path / "b.npy", np.zeros(shape, dtype))
        with pytest.raises(SourceError, match=re.escape(f"{dtype}{list(shape)}; float")):
            read_theirs(tmp_path / "b.npy", tmp_path / "a.txt", "text")
    np.save(tmp_path / "b.npy", np.ones((1, 3), np.int8))
    assert read_theirs(tmp_path / "b.npy", tmp_path / "a.txt", "text").vectors.tolist() == [[1] * 3]
    with pytest.raises(SourceError, match=r"c\.jsonl has its own texts; leave out --texts"):
        read_theirs(tmp_path / "c.jsonl", tmp_path / "a.txt", "text")
    (tmp_path / "d.npy").write_bytes(b"PK\3\4" + bytes(30))  # as an archive of arrays begins
    with pytest.raises(SourceError, match=r"d\.npy: cannot be read as \.npy"):
        read_theirs(tmp_path / "d.npy", tmp_path / "a.txt", "text")
    content = bytearray((tmp_path / "a.npy").read_bytes())
    content[8] ^= 1 << 6  # a header that ends too soon
    (tmp_path / "e.npy").write_bytes(content)
    with pytest.raises(SourceError, match=r"e\.npy: cannot be read as \.npy"):
        read_theirs(tmp_path / "e.npy", tmp_path / "a.txt", "text")
    np.save(tmp_path / "c.npy", np.full((1, 3), np.nan, np.float32))
    with pytest.raises(SourceError, match="NaN"):
        read_theirs(tmp_path / "c.npy", tmp_path / "a.txt", "text")


def test_a_sample_has_the_longest_texts() -> None:
    texts = ["x" * (row % 100) for row in range(1000)]
    chosen = sample(texts)
    assert len(chosen) == len({*chosen}) == MAX_TEXTS
    assert chosen == sorted(chosen)
    assert sum(len(texts[row]) == 99 for row in chosen) == 10
    assert min(len(texts[row]) for row in chosen) == 0


class Answers(BaseHTTPRequestHandler):
    """Answers as `answer` of its server says, and keeps what it was asked."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        assert self.headers["Content-Type"] == "application/json"
        server.asked.append((self.path, asked, self.headers.get("Authorization")))
        status, content = server.answer(self.path, asked)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(answer: Callable[[str, Any], tuple[int, Any]]) -> Iterator[Any]:
    with HTTPServer(("127.0.0.1", 0), Answers) as opened:
        server: Any = opened
        server.answer, server.asked = answer, []
        server.url = f"http://127.0.0.1:{opened.server_port}"
        thread = threading.Thread(target=opened.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            opened.shutdown()
            thread.join()


def as_openai(path: str, asked: Any) -> tuple[int, Any]:
    rows = [{"index": row, "embedding": [row, 0.5]} for row, _ in enumerate(asked["input"])]
    return 200, {"data": rows[::-1]}


def test_protocols() -> None:
    texts = [f"text {row}" for row in range(10)]
    with serving(as_openai) as server:
        made = Server(url=server.url, model="m", key="secret", dim=2).embed(texts)
        assert made[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
        path, asked, key = server.asked[0]
        assert (path, key) == ("/v1/embeddings", "Bearer secret")
        assert asked == {
            "model": "m", "input": texts[:8], "encoding_format": "float", "dimensions": 2,
        }  # fmt: skip
        for url in ("/api/v2", "/api/v2/", "/api/v2/embeddings"):
            Server(url=server.url + url, model="m").embed(texts[:1])
            assert server.asked[-1][0] == "/api/v2/embeddings"
            assert server.asked[-1][2] is None
    with serving(lambda path, asked: (200, [[1.0] for _ in asked["inputs"]])) as server:
        assert Server(url=f"{server.url}/embed", model="m").embed(texts).shape == (10, 1)
        assert server.asked[0][1] == {"inputs": texts[:8], "truncate": True}
        Server(url=f"{server.url}/embed/", model="m", dim=1).embed(texts[:1])
        asked = {"inputs": texts[:1], "truncate": True, "dimensions": 1}
        assert server.asked[-1][:2] == ("/embed/", asked)
    uneven = [[1.0], [1.0, 2.0]]
    with (
        serving(lambda *_: (200, uneven)) as server,
        pytest.raises(SourceError, match="made vectors of several lengths"),
    ):
        Server(url=f"{server.url}/embed", model="m").embed(texts[:2])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {"error": "no secret for you\n"}), 'answers 401: {"error": "no [*]{3} for you'),
        ((302, {}), "answers 302"),
        ((500, b"a\n" * 300), r"answers 500: (a ){93}a$"),
        ((500, b"\xff"), "answers 500: \ufffd$"),
        ((200, [1]), "does not answer as OpenAI's embeddings"),
        ((200, b"x"), "does not answer with JSON"),
        ((200, b"[" * 100_000), "does not answer with JSON"),
        ((200, {"data": "no"}), "does not answer as OpenAI's embeddings"),
        ((200, {"data": [{"index": 0, "embedding": "AAAA"}]}), "a list of numbers is needed"),
        ((200, {"data": []}), "made 0 vectors of 1 texts"),
        ((200, {"data": [5]}), "does not answer as OpenAI's embeddings"),
        ((200, {"data": [{"index": None, "embedding": [1.0]}]}), "does not answer as OpenAI's"),
        ((200, {"data": [{"embedding": [1.0]}]}), "does not answer as OpenAI's embeddings"),
        (
            (200, b'{"data": [{"index": 0, "embedding": [NaN]}]}'),
            "with NaN or infinity of 'a'; leave",
        ),
    ],
)
def test_other_answers(answer: tuple[int, Any], message: str) -> None:
    with serving(lambda path, asked: answer) as server:
        with pytest.raises(SourceError, match=message) as caught:
            Server(url=server.url, model="m", key="secret").embed(["a"])
        assert "secret" not in str(caught.value)
        assert len(server.asked) == 1


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_ANSWER_BYTES", 10)
    with serving(as_openai) as server:
        asking = Server(url=server.url, model="m")
        with pytest.raises(SourceError, match="answers with more than"):
            asking.embed(["a"])
    with pytest.raises(SourceError, match=r"cannot be asked: \[Errno \d+\] Connection refused$"):
        asking.embed(["a"])
    for url in ("http://127.0.0.1:1/\u00fc", f"http://{'a' * 64}.invalid/"):
        with pytest.raises(SourceError, match="cannot be asked: "):
            Server(url=url, model="m").embed(["a"])


def test_a_refusal_whose_text_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise ConnectionResetError

    def refuse(*_: object, **__: object) -> None:
        raise HTTPError("http://h", 500, "Broken", Message(), Torn())

    monkeypatch.setattr(OpenerDirector, "open", refuse)
    with pytest.raises(SourceError, match=r"answers 500: Broken$"):
        Server(url="http://h", model="m").embed(["a"])


def test_an_answer_that_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    def tear(*_: object, timeout: float) -> None:  # without one it may wait for ever
        assert timeout == SECONDS
        raise IncompleteRead(b"")

    monkeypatch.setattr(OpenerDirector, "open", tear)
    with pytest.raises(SourceError, match="cannot be asked: IncompleteRead"):
        Server(url="http://h", model="m").embed(["a"])


@pytest.mark.parametrize("key", ["\u00fc", "a\nb"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ConfigError, match="has a character that no header can carry"):
        Server(url="http://h", model="m", key=key)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://", "is no address"),
        ("http://host:port/", "is no address"),
        ("ftp://host/", "is no address"),
        ("https://:pass@host", "https://host: leave out user and password"),
        ("https://me@host/v1", "https://host/v1: leave out user and password"),
        ("https://me:pass@host/v1?key=pass", "https://host/v1: leave out user and password"),
        ("https://me:pass@host?key=pass", "https://host: leave out user and password"),
        ("https://host:port?key=pass", "https://host:port: is no address"),
        ("https://me:x?key=pass@host/v1", "https:///v1: is no address"),
    ],
)
def test_addresses(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Server(url=url, model="m")
    assert "pass@" not in str(caught.value)
    assert "key=pass" not in str(caught.value)

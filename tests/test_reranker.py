from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import json
import math
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib import Embedder, Reranker, Usage
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job
from embedlib.batching.tokenizing.pairs import PairTokenizer
from embedlib.config import Config
from embedlib.engines.base import Batch, Lane
from embedlib.errors import (
    ClosedError,
    ConfigError,
    InputError,
    ModelUnsupportedError,
    QueueFullError,
    SequenceTooLongError,
    TruncationWarning,
)
from embedlib.models.spec import Head, PairTemplate
from embedlib.session.running import ASYNC_SLICE_TEXTS
from embedlib.session.scoring import MAX_QUERY_PAIRS, activate, check_activation
from embedlib.testing import (
    FakeEngine,
    byte_tokenizer,
    fake_spec,
    fake_vector,
    write_tiny_model,
)
from embedlib.testing.models.table import SCORING_VARIANTS

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

GOLDENS = Path(__file__).parent / "goldens" / "heads"
ONE = Head(labels=("score",), activation="identity", reranker_activation="sigmoid")
THREE = Head(labels=("no", "maybe", "yes"), activation="softmax", reranker_activation="identity")
TEMPLATE = PairTemplate(
    prefix="<", body="{instruction}|{query}|{document}", suffix=">", instruction="find"
)


class ScoreEngine(FakeEngine):
    """Scores that tell pairs apart: of three, the first is small enough for a sigmoid."""

    def __init__(self, num_labels: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.limits = replace(self.limits, embedding_dim=num_labels)

    def _compute(self, batch: Batch) -> NDArray[np.float32]:
        vectors = super()._compute(batch)
        columns = [vectors[:, 4] / 10_000, vectors[:, 1] / 100, vectors[:, 2] / 10]
        return np.stack(columns[: self.limits.embedding_dim], axis=1).astype(np.float32)


def number(text: str) -> float:
    """The first score of a pair, whose texts byte_tokenizer puts together."""
    return float(fake_vector(list(text.encode()))[4] / 10_000)


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-np.float64(x))))


@pytest.fixture
def engine() -> FakeEngine:
    return ScoreEngine()


Make = Callable[..., Reranker]


@pytest.fixture
def make(engine: FakeEngine) -> Iterator[Make]:
    """Return a function that puts a Reranker around the engine, or around another one."""
    made: list[tuple[FakeEngine, Reranker]] = []

    def make(
        head: Head = ONE, *, around: FakeEngine = engine, spec: Any = None, **options: Any
    ) -> Reranker:
        reranker = Reranker.from_engine(
            around, spec or fake_spec(64, head=head), byte_tokenizer(), Config(**options)
        )
        made.append((around, reranker))
        return reranker

    yield make
    for around, reranker in made:
        around.release()  # a test that failed must not hang
        reranker.close()


@pytest.fixture
def reranker(make: Make) -> Reranker:
    return make()


# rank


def test_rank_sorts_by_score(reranker: Reranker) -> None:
    documents = ["b", "d", "", "c"]
    ranking = reranker.rank("q", documents)
    assert [entry["corpus_id"] for entry in ranking] == [1, 3, 0, 2]
    expected = [sigmoid(number("q" + documents[entry["corpus_id"]])) for entry in ranking]
    assert [entry["score"] for entry in ranking] == pytest.approx(expected)
    assert all(set(entry) == {"corpus_id", "score"} for entry in ranking)
    assert all(type(value) in (int, float) for entry in ranking for value in entry.values())


@pytest.mark.usefixtures("terminal")
def test_a_progress_bar_says_what_goes_on(
    reranker: Reranker, capsys: pytest.CaptureFixture[str]
) -> None:
    reranker.rank("q", ["b", "d"], show_progress_bar=True)
    assert capsys.readouterr().err.lstrip().startswith("Ranking:")


def test_rank_with_texts_and_a_limit(reranker: Reranker) -> None:
    ranking = reranker.rank("q", iter(["b", "d", "c"]), top_k=2, return_documents=True)
    assert [(entry["corpus_id"], entry["text"]) for entry in ranking] == [(1, "d"), (2, "c")]
    assert len(reranker.rank("q", ["a", "b"], top_k=9)) == 2


def test_equal_documents_keep_their_order(reranker: Reranker) -> None:
    assert [entry["corpus_id"] for entry in reranker.rank("q", ["a", "b", "a", "b"])] == [
        1,
        3,
        0,
        2,
    ]


def test_rank_takes_what_earlier_releases_of_the_peer_took(reranker: Reranker) -> None:
    expected = reranker.rank("q", ["b", "d"])
    options = {"convert_to_numpy": False, "convert_to_tensor": True}
    assert reranker.rank("q", ["b", "d"], **options) == expected


@pytest.mark.parametrize("call", [lambda each, df: each.rank("q", df), Reranker.predict])
def test_an_array_without_a_dimension_is_refused(
    reranker: Reranker, call: Callable[..., Any]
) -> None:
    with pytest.raises(InputError, match=r"(documents|inputs) = .*abc.*; pass a "):
        call(reranker, np.array("abc"))


@pytest.mark.parametrize(
    ("call", "how"),
    [
        (lambda each, df: each.rank("q", df), "for one column documents"),
        (Reranker.predict, "for pairs of two columns"),
    ],
)
def test_a_table_is_refused(reranker: Reranker, call: Callable[..., Any], how: str) -> None:
    class DataFrame(list):  # type: ignore[type-arg]
        columns = ("a", "b")

    with pytest.raises(InputError, match=f"is a DataFrame, a table, .*: {how}"):
        call(reranker, DataFrame())


def test_no_documents(reranker: Reranker) -> None:
    assert reranker.rank("q", []) == []


@pytest.mark.parametrize("num_documents", [1, MAX_QUERY_PAIRS, MAX_QUERY_PAIRS + 1])
def test_few_documents_go_first(num_documents: int, reranker: Reranker, engine: FakeEngine) -> None:
    ranking = reranker.rank("q", [f"{number:03}" for number in range(num_documents)])
    lane = Lane.QUERY if num_documents <= MAX_QUERY_PAIRS else Lane.BULK
    assert {batch.lane for batch in engine.batches} == {lane}
    assert sorted(entry["corpus_id"] for entry in ranking) == list(range(num_documents))


def test_a_rank_overtakes_a_long_predict(reranker: Reranker, engine: FakeEngine) -> None:
    engine.hold()
    pairs = [("q" * 20, "d" * 20)] * 200
    thread = threading.Thread(target=lambda: reranker.predict(pairs))
    thread.start()
    engine.wait_submitted(2)
    ranked: list[Any] = []
    ranker = threading.Thread(target=lambda: ranked.append(reranker.rank("q", ["a", "b"])))
    ranker.start()
    engine.wait_submitted(3)
    assert [batch.lane for batch in engine.batches] == [Lane.BULK, Lane.BULK, Lane.QUERY]
    engine.release()
    ranker.join()
    thread.join()
    assert len(ranked[0]) == 2


def test_rank_needs_one_score(make: Make) -> None:
    reranker = make(THREE, around=ScoreEngine(3))
    with pytest.raises(
        ConfigError,
        match=r"3 scores for a pair \(no, maybe, yes\); rank needs one.*embedlib classify",
    ):
        reranker.rank("q", ["a"])


# predict


def test_predict(reranker: Reranker, engine: FakeEngine) -> None:
    pairs = [("q", "a"), ["other", "b"], ("q", "a" * 20)]
    scores = reranker.predict(pairs)
    assert (scores.shape, scores.dtype) == ((3,), np.float32)
    expected = [sigmoid(number(first + second)) for first, second in pairs]
    assert scores.tolist() == pytest.approx(expected)
    assert {batch.lane for batch in engine.batches} == {Lane.BULK}


@pytest.mark.parametrize("pair", [("q", "a"), ["q", "a"], np.array(["q", "a"])])
def test_a_single_pair_gives_a_number(pair: Any, reranker: Reranker, engine: FakeEngine) -> None:
    score = reranker.predict(pair)
    assert isinstance(score, np.float32)
    assert score == pytest.approx(sigmoid(number("qa")))
    assert {batch.lane for batch in engine.batches} == {Lane.QUERY}


@pytest.mark.parametrize(
    "pairs", [[("q", "a")], (("q", "a"),), np.array([["q", "a"]]), iter([("q", "a")])]
)
def test_one_pair_in_a_list_gives_an_array(pairs: Any, reranker: Reranker) -> None:
    assert reranker.predict(pairs).shape == (1,)


def test_no_pairs(make: Make) -> None:
    assert make().predict([]).shape == (0,)
    assert make(THREE, around=ScoreEngine(3)).predict([]).shape == (0, 3)


def test_predict_by_its_former_name(reranker: Reranker) -> None:
    assert reranker.predict(sentences=[("q", "a")]).shape == (1,)
    with pytest.raises(ConfigError, match="two names of one argument"):
        reranker.predict([("q", "a")], sentences=[("q", "a")])


def test_several_scores_for_a_pair(make: Make) -> None:
    reranker = make(THREE, around=ScoreEngine(3))
    assert (reranker.labels, reranker.num_labels) == (("no", "maybe", "yes"), 3)
    numbers = reranker.predict([("q", "a"), ("q", "b")])
    assert numbers.shape == (2, 3)
    assert numbers[1].tolist() == pytest.approx([number("qb"), ord("b") / 100, 0.2])
    shares = reranker.predict([("q", "a"), ("q", "b")], apply_softmax=True)
    assert shares.sum(axis=1).tolist() == pytest.approx([1, 1])
    assert shares == pytest.approx(np.exp(numbers) / np.exp(numbers).sum(axis=1, keepdims=True))
    assert reranker.predict(("q", "b")).tolist() == pytest.approx(numbers[1].tolist())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, sigmoid(number("qa"))),
        ({"raw_scores": True}, number("qa")),
        ({"raw_scores": True, "activation_fn": "identity"}, number("qa")),
        ({"activation_fn": "sigmoid"}, sigmoid(number("qa"))),
        ({"activation_fn": "softmax"}, 1),
        ({"activation_fn": lambda numbers: numbers * 2}, 2 * number("qa")),
        ({"apply_softmax": True}, sigmoid(number("qa"))),
    ],
)
def test_activations(arguments: dict[str, Any], expected: float, reranker: Reranker) -> None:
    assert reranker.predict(("q", "a"), **arguments) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation_fn": "tanh"}, "activation_fn = 'tanh'; it must be a function or one of iden"),
        ({"activation_fn": lambda numbers: numbers[0]}, r"made the shape \(1,\) of \(1, 1\)"),
        ({"raw_scores": True, "activation_fn": "sigmoid"}, "leave out activation_fn"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"batch_size": None}, "batch_size = None"),
        ({"device": "cuda"}, "device = 'cuda'"),
        ({"pool": {}}, "pool = {}"),
        ({"chunk_size": 5}, "chunk_size = 5"),
        ({"prompt_name": "web"}, "prompt_name = 'web'"),
        ({"prompt_name": ["a", "b"]}, r"prompt_name = \['a', 'b'\]; .* are for rank of a Reranker"),
        ({"instruction": "find"}, "instruction = 'find'; this model has no template"),
    ],
)
def test_arguments_out_of_range(
    arguments: dict[str, Any], message: str, reranker: Reranker, engine: FakeEngine
) -> None:
    with pytest.raises(ConfigError, match=message):
        reranker.rank("q", ["a"], **arguments)
    with pytest.raises(ConfigError, match=message):
        reranker.predict(("q", "a"), **arguments)
    assert not engine.batches  # told before the work


def test_an_activation_that_makes_no_number(reranker: Reranker) -> None:
    for activation in (lambda numbers: numbers * np.nan, lambda numbers: numbers + np.inf):
        with pytest.raises(ConfigError, match=r"activation_fn made (nan|inf) of [\d.-]+; a score"):
            reranker.predict(("q", "a"), activation_fn=activation)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (lambda numbers: (numbers - numbers.min()) / (numbers.max() - numbers.min()), [1, 0]),
        (lambda numbers: [[math.log(row[0])] for row in numbers], [math.log(2), math.log(1)]),
        (lambda numbers: 1 / (numbers - 0.5), [1 / 1.5, 1 / 0.5]),
    ],
)
def test_an_activation_is_not_judged_by_made_up_numbers(
    activation: Any, expected: list[float]
) -> None:
    numbers = np.array([[2], [1]], np.float32)
    found = activate(numbers, check_activation(activation, 1))
    assert found[:, 0].tolist() == pytest.approx(expected)


def test_functions_of_torch_are_told_apart(reranker: Reranker, engine: FakeEngine) -> None:
    torch = pytest.importorskip("torch")
    for activation in (torch.sigmoid, lambda numbers: numbers.sigmoid(), torch.nn.Sigmoid):
        with pytest.raises(ConfigError, match=r"for torch a module: torch\.nn\.Sigmoid\(\)"):
            reranker.predict(("q", "a"), activation_fn=activation)
    assert not engine.batches


def test_torch(reranker: Reranker) -> None:
    torch = pytest.importorskip("torch")
    pairs = [("q", "a"), ("q", "b")]
    expected = reranker.predict(pairs)
    tensor = reranker.predict(pairs, convert_to_tensor=True)
    assert tensor.numpy().tolist() == expected.tolist()
    tensors = reranker.predict(pairs, convert_to_numpy=False)
    assert [type(each) for each in tensors] == [torch.Tensor] * 2
    assert reranker.predict(pairs[0], convert_to_tensor=True) == tensor[0]
    assert reranker.predict(pairs, activation_fn=torch.nn.Sigmoid()) == pytest.approx(expected)


# What comes in.


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "inputs = None; pass a pair of texts or a list of pairs"),
        ("text", "inputs = 'text'; pass a pair .*, or a query and its documents to rank$"),
        ({"q": "a"}, "inputs = {'q': 'a'}; pass a pair"),
        (["q", "a", "b"], r"pair 0 is \['q', 'a', 'b'\]; a pair is"),
        ([("q", "a"), ("q",)], r"pair 1 is \('q',\)"),
        ([("q", "a"), "qa"], "pair 1 is 'qa'"),
        ([("q", "a"), ("q", 5)], "the second text of pair 1 is 5, an int; it must be a str"),
        ([("q", "a"), ("q\udfff", "b")], "the first text of pair 1 has the lone surrogate"),
        ([("", "")], "pair 0 has no tokens"),
    ],
)
def test_wrong_pairs(inputs: Any, message: str, reranker: Reranker) -> None:
    with pytest.raises(InputError, match=message):
        reranker.predict(inputs)


@pytest.mark.parametrize(
    ("query", "documents", "message"),
    [
        (None, ["a"], "query = None; it must be a str"),
        ("q", "document", "documents = 'document'; pass a list of texts"),
        ("q", 5, "documents = 5"),
        ("q", {"id": "a"}, "documents = {'id': 'a'}; pass a list"),
        ("q", {"a"}, "documents = {'a'}; pass a list"),
        ("q", ["a", None], "document 1 is None"),
    ],
)
def test_wrong_documents(query: Any, documents: Any, message: str, reranker: Reranker) -> None:
    with pytest.raises(InputError, match=message):
        reranker.rank(query, documents)
    with pytest.raises(InputError, match=message):
        asyncio.run(reranker.arank(query, documents))


def test_a_bad_text_is_found_before_the_first_is_computed(reranker: Reranker) -> None:
    with pytest.raises(InputError, match="the second text of pair 1000 is None"):
        reranker.predict([*[("q", "a")] * 1000, ("q", None)])  # type: ignore[list-item]
    with pytest.raises(InputError, match="document 1000 is None"):
        reranker.rank("q", [*["a"] * 1000, None])  # type: ignore[list-item]
    assert reranker.stats().tokenize_ms == 0


@pytest.mark.parametrize("top_k", [-1, 1.5, "2", True])
def test_a_wrong_top_k(top_k: Any, reranker: Reranker, engine: FakeEngine) -> None:
    with pytest.raises(ConfigError, match=f"top_k = {top_k!r}; it must be a whole number"):
        reranker.rank("q", ["a"], top_k=top_k)
    assert not engine.batches


@pytest.mark.parametrize("top_k", [0, np.int64(0)])
def test_keeping_none_is_allowed(top_k: int, reranker: Reranker) -> None:
    # As with CrossEncoder: min(5, len(documents)) is 0 where nothing was found.
    assert reranker.rank("q", ["a"], top_k=top_k) == []


def test_cut_pairs_are_warned_of_where_the_call_stands(make: Make) -> None:
    reranker = make(max_seq_tokens=6)
    calls: list[Callable[[], Any]] = [
        lambda: reranker.predict([("q", "a"), ("q", "a" * 9)]),
        lambda: reranker.rank("q", ["a", "a" * 9]),
    ]
    for call in calls:
        with pytest.warns(TruncationWarning, match=r"row 1: 10 tokens.* to the Reranker") as caught:
            call()
        assert caught[0].filename == __file__

    async def both() -> None:
        await reranker.apredict([("q", "a"), ("q", "a" * 9)])
        await reranker.arank("q", ["a", "a" * 9])

    with pytest.warns(TruncationWarning) as caught:
        asyncio.run(both())
    assert [warning.filename for warning in caught] == [__file__] * 2
    assert reranker.stats().num_truncated == 4


def test_cut_pairs_may_be_an_error_or_nothing(make: Make) -> None:
    with pytest.raises(SequenceTooLongError, match="row 1: 10 tokens"):
        make(max_seq_tokens=6, on_truncate="error").rank("q", ["a", "a" * 9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(max_seq_tokens=6, on_truncate="ignore").rank("q", ["a", "a" * 9])


def test_more_documents_than_may_wait(make: Make) -> None:
    assert len(make(max_queued_texts=4).rank("q", ["a"] * 9)) == 9


def test_a_rank_waits_where_the_queue_of_queries_is_full(
    reranker: Reranker, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Pipeline.feed

    def feed_bulk_alone(pipeline: Pipeline, job: Job, *rest: Any) -> None:
        if job.lane is Lane.QUERY:
            raise QueueFullError("it is full")
        feed(pipeline, job, *rest)

    expected = reranker.rank("q", ["a", "b"])
    monkeypatch.setattr(Pipeline, "feed", feed_bulk_alone)
    usage = Usage()
    assert reranker.rank("q", ["a", "b"], usage=usage) == expected
    assert usage.num_texts == 2
    with pytest.raises(QueueFullError):
        reranker.predict(("q", "a"))


async def test_many_ranks_at_once_wait_for_one_another(make: Make, engine: FakeEngine) -> None:
    reranker = make(max_queued_texts=20)
    documents = [f"{number:02}" for number in range(18)]
    expected = reranker.rank("q", documents)
    engine.hold()
    tasks = [asyncio.create_task(reranker.arank("q", documents)) for _ in range(12)]
    # Until one has met the full queue.
    while engine.batches[-1].lane is not Lane.BULK and not any(task.done() for task in tasks):
        await asyncio.sleep(0)
    engine.release()
    assert await asyncio.gather(*tasks) == [expected] * 12


async def test_a_rank_that_meets_a_full_queue_tokenizes_its_pairs_once(
    make: Make, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = make(max_queued_texts=4)
    engine.hold()
    ranks = []
    while reranker._pipeline._manager._num_scheduled[Lane.QUERY] < 4:  # until none is taken
        ranks.append(asyncio.create_task(reranker.arank("q", list("abcd"))))
        await asyncio.sleep(0)
    tokenize, rows = PairTokenizer.__call__, []

    def note(tokenizer: PairTokenizer, job: Job, first_row: int, pairs: Any, **rest: Any) -> Any:
        rows.extend(pair for pair in pairs if pair[1] in "efgh")
        return tokenize(tokenizer, job, first_row, pairs, **rest)

    monkeypatch.setattr(PairTokenizer, "__call__", note)
    last = asyncio.create_task(reranker.arank("q", list("efgh")))
    await asyncio.sleep(0)
    thread = asyncio.create_task(asyncio.to_thread(reranker.rank, "q", list("efgh")))
    await asyncio.sleep(0)
    engine.release()
    await asyncio.gather(*ranks, last, thread)
    assert len(rows) == 8


def test_the_length_limit_may_be_set(reranker: Reranker, engine: FakeEngine) -> None:
    assert reranker.max_seq_length == 64
    reranker.max_seq_length = 3
    with pytest.warns(TruncationWarning):
        reranker.predict(("qq", "aa"))
    assert engine.batches[-1].token_ids.tolist() == [*b"qaa"]
    for limit in (0, 10**9, 4.5, None):
        with pytest.raises(ConfigError, match=f"max_seq_length = {limit}; this model allows"):
            reranker.max_seq_length = limit  # type: ignore[assignment]


# Prompts and templates.


def test_a_prompt_goes_in_front_of_the_first_text(make: Make, engine: FakeEngine) -> None:
    spec = fake_spec(64, head=ONE, prompts={"web": "W: "}, default_prompt_name="web")
    reranker = make(spec=spec, prompts={"mine": "M: "})
    assert dict(reranker.prompts) == {"web": "W: ", "mine": "M: "}
    assert reranker.default_prompt_name == "web"
    for arguments in ({}, {"prompt_name": "mine"}, {"prompt": "P: "}, {"prompt": ""}):
        reranker.predict(("q", "a"), **arguments)
    rows = [bytes(batch.token_ids.tolist()) for batch in engine.batches]
    assert rows == [b"W: qa", b"M: qa", b"P: qa", b"qa"]


def test_a_template_has_an_instruction(make: Make, engine: FakeEngine) -> None:
    reranker = make(replace(ONE, template=TEMPLATE))
    for arguments in (
        *({}, {"instruction": "I"}, {"prompt": "P"}, {"instruction": ""}),
        {"prompt": ""},  # as in CrossEncoder, whose chat template then takes its own default
    ):
        reranker.rank("q", ["a"], **arguments)
    rows = [bytes(batch.token_ids.tolist()) for batch in engine.batches]
    assert rows == [b"<find|q|a>", b"<I|q|a>", b"<P|q|a>", b"<|q|a>", b"<find|q|a>"]
    with pytest.raises(ConfigError, match="pass one"):
        reranker.rank("q", ["a"], instruction="I", prompt="P")
    with pytest.raises(ConfigError, match="instruction = 5; it must be a str"):
        reranker.rank("q", ["a"], instruction=5)  # type: ignore[arg-type]


def test_a_template_without_an_instruction(make: Make) -> None:
    reranker = make(
        replace(ONE, template=PairTemplate(prefix="", body="{query}{document}", suffix=""))
    )
    reranker.rank("q", ["a"])
    with pytest.raises(ConfigError, match="no place for an instruction"):
        reranker.rank("q", ["a"], instruction="I")


def test_a_query_that_is_in_the_template_already_is_refused(make: Make, engine: FakeEngine) -> None:
    template = replace(TEMPLATE, prefix="Judge this.\n")
    reranker = make(replace(ONE, template=template))
    said = r"^the first text of pair 1 is in this model's template already: it begins with 'Judge "
    with pytest.raises(InputError, match=said):
        reranker.predict([("q", "a"), ("Judge this.\nfind|q", "|a>")])
    with pytest.raises(InputError, match="the first text of pair 0 is in this model's template"):
        reranker.rank("Judge this.|q", ["a"])
    reranker.rank("q", ["Judge this.\n"])  # a document may speak of it
    make(replace(ONE, template=TEMPLATE)).rank("<find|q", ["a"])  # a mark alone tells nothing
    make().rank("Judge this.\nq", ["a"])  # a model without a template


# Async.


async def test_async_gives_the_same(reranker: Reranker) -> None:
    pairs = [("q", "a"), ("q", "b")]
    assert (await reranker.apredict(pairs) == reranker.predict(pairs)).all()
    assert await reranker.apredict(pairs[0]) == reranker.predict(pairs[0])
    assert await reranker.apredict(pairs[0], raw_scores=True) == pytest.approx(number("qa"))
    ranking = reranker.rank("q", ["a", "b"], top_k=1, return_documents=True)
    assert await reranker.arank("q", ["a", "b"], top_k=1, return_documents=True) == ranking


async def test_other_tasks_run_while_documents_are_tokenized(reranker: Reranker) -> None:
    num_turns = 0
    seen: list[tuple[int, int]] = []
    form = reranker._tokenizer._form
    encode = form.encode

    def spy(pairs: Any, *rest: Any) -> Any:
        seen.append((len(pairs), num_turns))
        return encode(pairs, *rest)

    async def other_task() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    form.encode = spy  # type: ignore[method-assign]
    other = asyncio.create_task(other_task())
    found = await reranker.arank("q", [f"{number:03}" for number in range(MAX_QUERY_PAIRS)])
    other.cancel()
    assert len(found) == MAX_QUERY_PAIRS
    assert sum(num_pairs for num_pairs, _ in seen) == MAX_QUERY_PAIRS
    assert max(num_pairs for num_pairs, _ in seen) == ASYNC_SLICE_TEXTS
    turns = [turn for _, turn in seen]
    assert all(before < after for before, after in pairwise(turns))


async def test_cancelling_drops_what_waits(reranker: Reranker, engine: FakeEngine) -> None:
    engine.hold()
    task = asyncio.create_task(reranker.arank("q", ["d" * 40] * 100))
    await asyncio.to_thread(engine.wait_submitted, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.release()
    await reranker.arank("q", ["a"])
    assert len(engine.batches) < 6


async def test_cancelling_while_the_queue_is_full(make: Make, engine: FakeEngine) -> None:
    reranker = make(max_queued_texts=64)
    engine.hold()
    task = asyncio.create_task(reranker.apredict([("q", "d" * 40)] * 1000))
    await asyncio.to_thread(engine.wait_submitted, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.release()
    await reranker.apredict([("q", "a")])
    assert len(engine.batches) < 500


# Real models, small ones: stored outputs of CrossEncoder, see goldens/make_heads.py.


@pytest.mark.parametrize("variant", SCORING_VARIANTS)
def test_scores_and_ids_are_cross_encoders(
    variant: str, tiny_folder: Callable[[str], Path], engine_cache: Path
) -> None:
    pairs = json.loads((GOLDENS / "pairs.json").read_text(encoding="utf-8"))
    with np.load(GOLDENS / f"{variant}.npz") as stored:
        golden = {name: stored[name] for name in stored.files}
    options: dict[str, Any] = {
        "template": SCORING_VARIANTS[variant].template,
        "engine_cache_dir": engine_cache,
        "on_truncate": "ignore",
    }
    with Reranker(tiny_folder(variant), **options) as reranker:
        job = Job(len(pairs), 1, Lane.BULK)
        sequences = reranker._tokenize(None, None, None)(job, 0, [tuple(pair) for pair in pairs])
        numbers = reranker.predict(pairs, raw_scores=True)
        scores = reranker.predict(pairs)
        if reranker.num_labels == 1:
            ranking = reranker.rank(pairs[0][0], [document for _, document in pairs])
            assert sorted(entry["corpus_id"] for entry in ranking) == list(range(len(pairs)))
    ends = np.cumsum(golden["pairs.lengths"])[:-1]
    expected_ids = [ids.tolist() for ids in np.split(golden["pairs.ids"], ends)]
    assert [sequence.token_ids for sequence in sequences] == expected_ids
    num_type0_tokens = golden.get("pairs.num_first_tokens", golden["pairs.lengths"])
    assert [
        sequence.num_tokens if sequence.num_type0_tokens is None else sequence.num_type0_tokens
        for sequence in sequences
    ] == num_type0_tokens.tolist()
    for found, name in ((numbers, "numbers"), (scores, "scores")):
        expected = golden[f"pairs.{name}"]
        distance = np.linalg.norm(found.reshape(expected.shape) - expected)
        assert distance <= 1e-4 * np.linalg.norm(expected)
    np.testing.assert_allclose(scores.reshape(expected.shape), expected, atol=1e-4)


# What it is, and its life.


def test_names_and_order_of_arguments_are_cross_encoders() -> None:
    # Source: sentence-transformers 6.2.0, CrossEncoder.predict and .rank.
    common = ["prompt_name", "prompt", "batch_size", "show_progress_bar", "activation_fn"]
    ends = ["device", "pool", "chunk_size"]
    softmax = ["apply_softmax", "convert_to_numpy", "convert_to_tensor"]
    wanted = {
        "predict": ["inputs", *common, *softmax, *ends],
        "rank": ["query", "documents", "top_k", "return_documents", *common, *ends],
    }
    for name, expected in wanted.items():
        parameters = list(inspect.signature(getattr(Reranker, name)).parameters.values())[1:]
        positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        assert positional == expected


def test_closing(make: Make, engine: FakeEngine) -> None:
    with make() as reranker:
        reranker.rank("q", ["a"])
    assert engine.is_closed
    with pytest.raises(ClosedError, match="this model is closed; load it again"):
        reranker.rank("q", ["a"])


def test_a_reranker_that_is_dropped_closes_its_engine() -> None:
    engine = ScoreEngine()
    reranker = Reranker.from_engine(engine, fake_spec(head=ONE), byte_tokenizer())
    reranker.me = reranker  # type: ignore[attr-defined] # a cycle
    del reranker
    gc.collect()
    assert engine.is_closed


def test_it_is_neither_pickled_nor_copied(reranker: Reranker) -> None:
    with pytest.raises(TypeError, match="a Reranker cannot be pickled or copied; share it"):
        pickle.dumps(reranker)
    with pytest.raises(TypeError, match="give a library that copies what it gets a function"):
        copy.deepcopy(reranker)


def test_stats(reranker: Reranker) -> None:
    reranker.rank("q", ["a", "bc"])
    stats = reranker.stats()
    assert (stats.num_texts, stats.num_tokens, stats.num_query_batches) == (2, 5, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncate_dim": 1}, "truncate_dim = 1 is for embeddings and a Reranker makes scores"),
        ({"similarity_fn_name": "dot"}, "similarity_fn_name = 'dot' is for embeddings"),
        ({"max_seq_tokens": 0}, "max_seq_tokens = 0"),
        ({"default_prompt_name": "web"}, "'web'"),
        ({"prompts": {"web": "W {text} D"}}, r"prompts\['web'\] = 'W {text} D'; {task} and"),
        ({"prompts": {"web": "{task}: "}}, "in front of the query as it is"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str, make: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)
    with pytest.raises(ConfigError, match="unknown option 'trunc'"):
        Reranker("no-such-model", trunc=1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("max_length", "pass max_seq_tokens="),
        ("activation_fn", "pass it to rank or predict"),
        ("num_labels", "leave it out"),
    ],
)
def test_options_of_cross_encoder_name_what_takes_their_place(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{option}'; .*{message}"):
        Reranker("no-such-model", **{option: 1})


def test_a_model_without_scores_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="a Reranker needs a model that makes scores"):
        make(spec=fake_spec())


def test_a_limit_without_room_for_a_pair_is_refused(make: Make, engine: FakeEngine) -> None:
    head = replace(ONE, template=TEMPLATE)
    with pytest.raises(ConfigError, match="max_seq_tokens = 2; this model puts 2 tokens around"):
        make(head, max_seq_tokens=2)
    assert engine.is_closed  # it would be left with its threads otherwise


def test_a_known_reranker_is_no_embedding_model(tmp_path: Path, engine_cache: Path) -> None:
    # Its files are those of a language model, which would give vectors without a meaning.
    name, commit = "Qwen/Qwen3-Reranker-0.6B", "0" * 40
    root = tmp_path / "models--Qwen--Qwen3-Reranker-0.6B"
    write_tiny_model(root / "snapshots" / commit, "qwen3-answers")
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    options: dict[str, Any] = {"cache_folder": tmp_path, "local_files_only": True}
    with pytest.raises(ModelUnsupportedError, match=f"{name} is a reranker; use Reranker"):
        Embedder(name, **options)
    with Reranker(name, engine_cache_dir=engine_cache, **options) as reranker:
        assert len(reranker.rank("q", ["a"])) == 1

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib import Classifier
from embedlib.batching.usage import Usage
from embedlib.config import Config
from embedlib.engines.base import Batch
from embedlib.errors import (
    ClosedError,
    ConfigError,
    InputError,
    SequenceTooLongError,
    TruncationWarning,
)
from embedlib.models.spec import Head, PairTemplate
from embedlib.session.scoring import activate
from embedlib.testing import FakeEngine, byte_tokenizer, fake_spec
from embedlib.testing.models.table import SCORING_VARIANTS

GOLDENS = Path(__file__).parent / "goldens"
LABELS = ("joy", "anger", "fear")
NLI = ("contradiction", "neutral", "entailment")


class LabelEngine(FakeEngine):
    """The first three bytes of a text are its numbers: "a" is 0.0, "b" is 0.1."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.limits = replace(self.limits, embedding_dim=num_labels)

    def _compute(self, batch: Batch) -> NDArray[np.float32]:
        starts = batch.cu_seqlens[:-1, None] + np.arange(self.limits.embedding_dim)
        return ((batch.token_ids[starts] - ord("a")) / 10).astype(np.float32)


Make = Callable[..., Classifier]


@pytest.fixture
def make(no_thread_is_left: None) -> Iterator[Make]:
    """Return a function that makes Classifiers, closed in the end."""
    made: list[Classifier] = []

    def make(
        activation: Any = "softmax", labels: tuple[str, ...] = LABELS, **options: Any
    ) -> Classifier:
        head = Head(labels=labels, activation=activation, reranker_activation="sigmoid")
        classifier = Classifier.from_engine(
            LabelEngine(len(labels)),
            fake_spec(8, head=head),
            byte_tokenizer(),
            Config(**options),
        )
        made.append(classifier)
        return classifier

    yield make
    for classifier in made:
        classifier.close()


def softmax(*numbers: float) -> list[float]:
    powers = np.exp(np.array(numbers))
    return list(powers / powers.sum())


def test_labels_of_texts(make: Make) -> None:
    results = make().predict(["cab", "bbd"])
    c, a, b = softmax(0.2, 0.0, 0.1)
    assert results[0] == [
        {"label": "joy", "score": pytest.approx(c)},
        {"label": "fear", "score": pytest.approx(b)},
        {"label": "anger", "score": pytest.approx(a)},
    ]
    # Equal scores come in the order of the labels.
    assert [each["label"] for each in results[1]] == ["fear", "joy", "anger"]
    assert type(results[0][0]["score"]) is float


def test_a_single_text_goes_first_and_has_one_result(make: Make) -> None:
    classifier = make()
    [best] = classifier.predict("cab", top_k=1)
    assert best == {"label": "joy", "score": pytest.approx(softmax(0.2, 0.0, 0.1)[0])}
    assert classifier.stats().num_query_batches == 1
    assert classifier.predict(["cab"], top_k=1) == [[best]]
    assert classifier.stats().num_query_batches == 1


@pytest.mark.parametrize(
    ("options", "num_labels", "is_query"),
    [({}, 128, True), ({}, 129, False), ({"max_queued_texts": 4}, 5, False)],
)
def test_zero_shot_of_many_labels_is_bulk_work(
    options: dict[str, Any], num_labels: int, is_query: bool, make: Make
) -> None:
    classifier = make(labels=NLI, **options)
    labels = [f"{number:03}" for number in range(num_labels)]
    assert len(classifier.zero_shot("a", labels, "{}")) == num_labels
    assert bool(classifier.stats().num_query_batches) is is_query


def test_zero_shot_names_the_texts_of_the_caller(make: Make) -> None:
    usage = Usage()
    texts, labels = ["ab", "abcdefghi"], ["x", "y", "z"]
    with pytest.warns(TruncationWarning, match=r"^1 text is too long \(row 1: 10 tokens\)"):
        make(labels=NLI).zero_shot(texts, labels, "{}", usage=usage)
    assert (usage.num_texts, usage.truncated) == (2, [(1, 10)])
    with pytest.raises(SequenceTooLongError, match=r"^1 text is too long \(row 1: ") as caught:
        make(labels=NLI, on_truncate="error").zero_shot(texts, labels, "{}")
    assert caught.value.rows == (1,)
    for wrong, message in ((None, "text 1 is None"), ("\ud800", "text 1 has the lone surrogate")):
        with pytest.raises(InputError, match=f"^{message}"):
            make(labels=NLI).zero_shot(["ab", wrong], labels, "{}")  # type: ignore[list-item]


def test_a_bad_text_is_found_before_the_first_is_computed(make: Make) -> None:
    classifier = make()
    with pytest.raises(InputError, match="text 1000 is None"):
        classifier.predict([*["a"] * 1000, None])  # type: ignore[list-item]
    assert classifier.stats().tokenize_ms == 0


def test_labels_that_do_not_exclude_one_another(make: Make) -> None:
    [result] = make("sigmoid").predict(["cab"])
    scores = {each["label"]: each["score"] for each in result}
    expected = {"joy": 0.2, "anger": 0.0, "fear": 0.1}
    assert scores == {
        label: pytest.approx(1 / (1 + np.exp(-value))) for label, value in expected.items()
    }


def test_raw_scores(make: Make) -> None:
    classifier = make()
    assert classifier.predict("cab", raw_scores=True)[0] == {
        "label": "joy",
        "score": pytest.approx(0.2),
    }
    assert classifier.predict_scores("cab", raw_scores=True).tolist() == pytest.approx(
        [0.2, 0.0, 0.1]
    )


def test_scores_as_an_array(make: Make) -> None:
    classifier = make()
    scores = classifier.predict_scores(iter(["cab", "bbd"]))
    assert (scores.shape, scores.dtype) == ((2, 3), np.float32)
    assert scores[0].tolist() == pytest.approx(softmax(0.2, 0.0, 0.1))
    assert (classifier.predict_scores("cab") == scores[0]).all()
    assert classifier.labels == LABELS


def test_a_reward_model_has_one_score(make: Make) -> None:
    classifier = make("identity", ("reward",))
    assert classifier.predict_scores(["c", "a"])[:, 0].tolist() == pytest.approx([0.2, 0.0])
    assert classifier.predict("c") == [{"label": "reward", "score": pytest.approx(0.2)}]


def test_no_texts(make: Make) -> None:
    assert make().predict([]) == []
    assert make().predict_scores([]).shape == (0, 3)


async def test_async_gives_the_same(make: Make) -> None:
    classifier = make()
    texts = ["cab", "bbd"]
    assert await classifier.apredict(texts, top_k=2) == classifier.predict(texts, top_k=2)
    assert await classifier.apredict("cab") == classifier.predict("cab")
    assert classifier.predict(np.array("cab")) == classifier.predict("cab")  # type: ignore[arg-type]
    assert (await classifier.apredict_scores(texts) == classifier.predict_scores(texts)).all()
    assert (await classifier.apredict_scores("cab", raw_scores=True)).shape == (3,)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts = None"),
        (np.array(5), "texts = 5"),
        (b"abc", r"texts = b'abc'; pass a text or .*; texts\.decode"),
        ({"text": "a"}, "texts = {'text"),
        (["abc", 5], "text 1 is 5"),
        ([("a", "b")], r"text 0 is \('a', 'b'\), a tuple; .*: score pairs with Reranker.predict"),
        ({"text": "a", "text_pair": "b"}, "text 0 is .*, a dict; .* pairs with Reranker.predict"),
        ([{"text": "a", "text_pair": "b"}], "text 0 is .*, a dict; .* pairs with Reranker.predict"),
        (["ab\ud800"], "text 0 has the lone"),
    ],
)
def test_wrong_texts(texts: Any, message: str, make: Make) -> None:
    with pytest.raises(InputError, match=message):
        make().predict(texts)
    with pytest.raises(InputError, match=message):
        make().predict_scores(texts)


@pytest.mark.parametrize("top_k", [-1, 1.5, "2", True])
def test_a_wrong_top_k(top_k: Any, make: Make) -> None:
    with pytest.raises(ConfigError, match=f"top_k = {top_k!r}; it must be a whole number"):
        make().predict("cab", top_k=top_k)
    with pytest.raises(ConfigError, match="top_k = "):
        asyncio.run(make().apredict("cab", top_k=top_k))


def test_cut_texts_are_warned_of_where_the_call_stands(make: Make) -> None:
    classifier = make()
    for call in (classifier.predict, classifier.predict_scores):
        with pytest.warns(TruncationWarning, match=r"row 1: 9 tokens.* to the Classifier") as told:
            call(["cab", "abcdefghi"])
        assert told[0].filename == __file__

    async def both() -> None:
        await classifier.apredict("abcdefghi")
        await classifier.apredict_scores("abcdefghi")

    with pytest.warns(TruncationWarning) as told:
        asyncio.run(both())
    assert [warning.filename for warning in told] == [__file__] * 2


def test_life_cycle(make: Make) -> None:
    with make() as classifier, pytest.raises(TypeError, match="a Classifier cannot be pickled"):
        pickle.dumps(classifier)
    with pytest.raises(ClosedError):
        classifier.predict("cab")
    with pytest.raises(ConfigError, match="truncate_dim = 2 is for embeddings and a Classifier"):
        make(truncate_dim=2)


@pytest.mark.parametrize("options", [{"prompts": {"a": "A: "}}, {"default_prompt_name": "a"}])
def test_prompts_are_refused_and_not_left_out(options: dict[str, Any], make: Make) -> None:
    with pytest.raises(ConfigError, match="a Classifier takes texts as they are"):
        make(**options)


def test_a_model_that_asks_about_pairs_is_refused() -> None:
    template = PairTemplate(prefix="", body="{query}{document}", suffix="")
    head = Head(
        labels=("score",), activation="sigmoid", reranker_activation="sigmoid", template=template
    )
    with pytest.raises(ConfigError, match="load it with Reranker"):
        Classifier.from_engine(LabelEngine(1), fake_spec(head=head), byte_tokenizer())


CLASSIFIERS = [
    name
    for name in SCORING_VARIANTS
    if "texts.scores" in np.load(GOLDENS / "heads" / f"{name}.npz").files
]


@pytest.mark.parametrize("variant", CLASSIFIERS)
def test_scores_are_those_of_the_pipeline(
    variant: str, tiny_folder: Callable[[str], Path], engine_cache: Path
) -> None:
    # Stored outputs of transformers' text-classification, see goldens/make_heads.py.
    texts = json.loads((GOLDENS / "texts.json").read_text(encoding="utf-8"))
    with np.load(GOLDENS / "heads" / f"{variant}.npz") as stored:
        expected, expected_numbers = stored["texts.scores"], stored["texts.numbers"]
        lengths = stored["texts.lengths"]
    options: dict[str, Any] = {"engine_cache_dir": engine_cache, "on_truncate": "ignore"}
    with Classifier(tiny_folder(variant), **options) as classifier:
        # The pipeline was told to cut two tokens before the last position.
        classifier.max_seq_length = max(lengths)
        numbers = classifier.predict_scores(texts, raw_scores=True)
        scores = classifier.predict_scores(texts)
        best = classifier.predict(texts, top_k=1)
        labels = classifier.labels
    for found, right in ((numbers, expected_numbers), (scores, expected)):
        assert np.linalg.norm(found - right) <= 1e-4 * np.linalg.norm(right)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert [each["label"] for [each] in best] == [labels[row.argmax()] for row in expected]


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("identity", [[-1e4, 1e4], [0, 1]]),
        ("sigmoid", [[0, 1], [0.5, 0.7310586]]),
        ("softmax", [[0, 1], [0.26894143, 0.7310586]]),
    ],
)
def test_activations_stay_finite(activation: Any, expected: list[list[float]]) -> None:
    scores = activate(np.array([[-1e4, 1e4], [0, 1]], np.float32), activation)
    assert scores.dtype == np.float32
    assert scores == pytest.approx(np.array(expected))

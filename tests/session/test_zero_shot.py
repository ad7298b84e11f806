"""Zero-shot classification, against stored scores of transformers' pipeline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Classifier
from embedlib.errors import ConfigError, InputError, ModelUnsupportedError
from embedlib.session.zero_shot import make_pairs

STORED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "goldens" / "zero_shot.json").read_text()
)


def test_scores_are_those_of_transformers(
    tiny_folder: Callable[[str], Path], engine_cache: Path
) -> None:
    texts, labels = STORED["texts"], STORED["labels"]
    folder = tiny_folder("deberta-v2-classifier")
    with Classifier(folder, threads=1, engine_cache_dir=engine_cache) as classifier:
        for case in STORED["cases"]:
            options = {key: case[key] for key in ("hypothesis_template", "multi_label")}
            found = classifier.zero_shot(texts, labels, **options)
            for entries, scores in zip(found, case["scores"], strict=True):
                by_label = {entry["label"]: entry["score"] for entry in entries}
                assert [by_label[label] for label in labels] == pytest.approx(scores, rel=1e-4)
                assert sorted(by_label.values(), reverse=True) == list(by_label.values())
        single = classifier.zero_shot(texts[0], labels)
        assert asyncio.run(classifier.azero_shot(texts[0], labels)) == single
        assert single == classifier.zero_shot([texts[0]], labels)[0]
        alone = classifier.zero_shot(texts[0], labels[:1])
        assert 0 < alone[0]["score"] < 1  # as with multi_label
        for wrong in ([], " , ", [3], [""], {"river"}, {"river": 1}, 3, None):
            with pytest.raises(InputError, match=r"^candidate_labels = "):
                classifier.zero_shot("a", wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"^candidate_labels\[1\] has the lone surrogate"):
            classifier.zero_shot("a", ["b", "\ud800"])
        with pytest.raises(ConfigError, match=r"^hypothesis_template = 'This is it'; "):
            classifier.zero_shot("a", labels, "This is it")
        named = classifier.zero_shot("a", ["river", "the sea"])
        label_forms: list[Any] = ["river, the sea ,", np.array(["river", "the sea"])]
        for form in (*label_forms, (label for label in ("river", "the sea"))):
            assert classifier.zero_shot("a", form) == named
        classifier.max_seq_length = 12
        with pytest.raises(InputError, match="nothing is left for the text; shorten the label"):
            classifier.zero_shot("a", ["river " * 12])


@pytest.mark.parametrize(
    ("template", "hypothesis"),
    [
        ("about {}", "about {a}"),
        ("about {0}, {0}", "about {a}, {a}"),
        ("{{x}} {}", "{x} {a}"),
        ("{{}} {}", "{} {a}"),
    ],
)
def test_a_template_is_filled_as_format_does(template: str, hypothesis: str) -> None:
    assert make_pairs(["text"], ["{a}"], template) == [("text", hypothesis)]
    assert template.format("{a}") == hypothesis


@pytest.mark.parametrize(
    "template",
    ["", "{{}}", "{} {}", "{} {0}", "{1}", "{label}", "{!r}", "{:>9}", "{0.real}", "{} {", "} {}"],
)
def test_a_template_with_other_places_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=r"must hold \{\} once, the label's place, and any other"):
        make_pairs(["text"], ["a"], template)


def test_a_model_without_the_label_is_refused(
    tiny_folder: Callable[[str], Path], engine_cache: Path
) -> None:
    folder = tiny_folder("bert-classifier")
    with (
        Classifier(folder, threads=1, engine_cache_dir=engine_cache) as classifier,
        pytest.raises(ModelUnsupportedError, match="labels are positive, neutral, negative; zero"),
    ):
        classifier.zero_shot("a", ["b"])

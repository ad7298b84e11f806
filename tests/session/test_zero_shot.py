"""Zero-shot classification, against stored scores of transformers' pipeline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib import Classifier
from embedlib.errors import ConfigError, InputError, ModelUnsupportedError

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
        for wrong in ([], "river", [3], [""]):
            with pytest.raises(InputError, match=r"^candidate_labels = "):
                classifier.zero_shot("a", wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"^hypothesis_template = 'This is it'; "):
            classifier.zero_shot("a", labels, "This is it")
        classifier.max_seq_length = 12
        with pytest.raises(InputError, match="nothing is left for the text; shorten the label"):
            classifier.zero_shot("a", ["river " * 12])


def test_a_model_without_the_label_is_refused(
    tiny_folder: Callable[[str], Path], engine_cache: Path
) -> None:
    folder = tiny_folder("bert-classifier")
    with (
        Classifier(folder, threads=1, engine_cache_dir=engine_cache) as classifier,
        pytest.raises(ModelUnsupportedError, match="labels are positive, neutral, negative; zero"),
    ):
        classifier.zero_shot("a", ["b"])

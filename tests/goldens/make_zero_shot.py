"""Write zero_shot.json: what transformers' zero-shot pipeline says with a tiny DeBERTa.

Run by hand, in the environment of tests/frameworks, from the repository's root:

    python tests/goldens/make_zero_shot.py
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from pathlib import Path

from transformers import pipeline

from embedlib.testing.models.write import write_tiny_model

HERE = Path(__file__).parent
TEXTS = ["The quick brown fox jumps over the lazy dog.", "Data of the city"]
LABELS = ["river", "small word", "search"]
TEMPLATES = ["This example is {}.", "It is about {}"]


def main() -> None:
    """Write the scores of every label, in the order of LABELS, and the releases."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(write_tiny_model(Path(temporary), "deberta-v2-classifier"))
        classify = pipeline("zero-shot-classification", model=folder, tokenizer=folder)
        cases = []
        for template in TEMPLATES:
            for multi_label in (False, True):
                options = {"hypothesis_template": template, "multi_label": multi_label}
                found = classify(TEXTS, candidate_labels=LABELS, **options)
                rows = [dict(zip(one["labels"], one["scores"], strict=True)) for one in found]
                scores = [[row[label] for label in LABELS] for row in rows]
                cases.append({**options, "scores": scores})
    packages = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    content = {"texts": TEXTS, "labels": LABELS, "cases": cases, "packages": packages}
    (HERE / "zero_shot.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

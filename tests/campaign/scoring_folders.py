"""Random folders of rerankers and classifiers: heads, labels, activations, prompts and limits.

Scores are those of sentence-transformers' CrossEncoder and of transformers where these are
installed, and they must not depend on the batch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from embedlib import Classifier, Reranker
from embedlib.errors import EmbedlibError
from embedlib.testing.models.table import SCORING_VARIANTS
from embedlib.testing.models.variant import Json, TinyVariant
from embedlib.testing.models.write import write_variant
from tests.campaign import reference
from tests.campaign.knobs import KNOBS, TEXTS, TOLERANCE
from tests.campaign.verdict import Verdict, finding, judge_error, reference_fails

OWN_CODE: Final = ("new-reranker",)
"""Variants whose config.json only the model's own code reads: no reference for them."""
PAIRS: Final = tuple((query, text) for query in ("hello", TEXTS[1]) for text in TEXTS)
ACTIVATIONS: Final = ("torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity")
HEAD_KNOBS: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "classifier_pooling": ("cls", "mean"),
        "classifier_activation": ("gelu", "silu", "relu"),
        "classifier_bias": (False, True),
        "norm_bias": (False, True),
        "classifier_dropout": (None, 0.1),
    }
)
PROBLEMS: Final = (
    *("single_label_classification", "multi_label_classification", "regression"),
    None,
)


def judge_scoring_folder(rng: random.Random, place: Path) -> Verdict:
    """Write a folder of a scoring model, load it as drawn and compare its scores."""
    base, row, what = draw_scoring_row(rng)
    is_reranker = row.template is not None or bool(row.modules) or rng.random() < 0.5
    kind = Reranker if is_reranker else Classifier
    what = f"{kind.__name__} {what}"
    try:
        write_variant(place, f"{base} {rng.random()}", row)
        session: Any = kind(place, precision="float32", on_truncate="ignore")
    except EmbedlibError as error:
        return judge_error(error, what)
    with session:
        inputs: Any = list(PAIRS if is_reranker else TEXTS)
        score = session.predict if is_reranker else session.predict_scores
        together = score(inputs)
        gap = reference.error_of(np.stack([score(entry) for entry in inputs]), together)
        if gap > TOLERANCE:
            return finding("different", f"{what}: alone and in a batch: {gap:.1e} apart")
        if base in OWN_CODE or row.template is not None or not reference.is_installed():
            return Verdict("same alone and in a batch", what)
        try:
            if is_reranker:
                theirs = reference.open_reference(place, is_scorer=True).predict(inputs)
            else:
                theirs = reference.class_scores(place, inputs, session.labels, limit_of(session))
        except Exception as error:
            return reference_fails(error, what)
    gap = reference.error_of(together, theirs)
    if gap > TOLERANCE:
        return finding("different", f"{what}: {gap:.1e} from the reference")
    return Verdict("same", what)


def limit_of(session: Classifier) -> int:
    """Return the length at which a classifier cuts; the pipeline of transformers needs one."""
    return session.spec.max_seq_tokens


def draw_scoring_row(rng: random.Random) -> tuple[str, TinyVariant, str]:
    """Return a base, the content of a folder drawn from it, and what was drawn."""
    base = rng.choice(sorted(SCORING_VARIANTS))
    row = SCORING_VARIANTS[base]
    known = [key for key in {**KNOBS, **HEAD_KNOBS} if key in row.config]
    values = {**KNOBS, **HEAD_KNOBS}
    keys = rng.sample(known, min(len(known), rng.randrange(4)))
    chosen: Json = {key: rng.choice(values[key]) for key in keys}
    if not row.config["architectures"][0].endswith("CausalLM") and row.template is None:
        chosen |= draw_labels(rng, row)
    general = row.general
    if general is not None:
        prompts = rng.choice(({}, {"query": "query: "}, {"any": "search text "}))
        default = rng.choice((None, *prompts))
        general = general | {
            "prompts": prompts,
            "default_prompt_name": default,
            "activation_fn": rng.choice(ACTIVATIONS),
        }
    limit = rng.choice((None, 12, 20)) if row.template is None else None
    drawn = replace(
        row,
        config=row.config | chosen,
        general=general,
        tokenizer_config=row.tokenizer_config
        | ({} if limit is None else {"model_max_length": limit}),
        dtype=rng.choice(("F32", "F16", "BF16")),
        num_shards=rng.choice((1, 1, 2, 3)),
    )
    told = {**chosen, **({} if general is None else {"prompt": general["default_prompt_name"]})}
    return base, drawn, f"{base} {told} {drawn.dtype} limit {limit}"


def draw_labels(rng: random.Random, row: TinyVariant) -> Json:
    """Return keys of config.json: the labels, what they mean, and a reranker's activation."""
    drawn: Json = {}
    if "id2label" in row.config and rng.random() < 0.6:
        names = [f"label {number}" for number in range(rng.choice((1, 1, 2, 3, 7)))]
        drawn["id2label"] = {str(number): name for number, name in enumerate(names)}
        drawn["label2id"] = {name: number for number, name in enumerate(names)}
    if rng.random() < 0.5:
        drawn["problem_type"] = rng.choice(PROBLEMS)
    way = rng.random()
    if way < 0.25:
        drawn["sbert_ce_default_activation_function"] = rng.choice(ACTIVATIONS)
    elif way < 0.5:
        drawn["sentence_transformers"] = {
            "activation_fn": rng.choice(ACTIVATIONS),
            "version": "4.1.0",
        }
    return drawn

"""Templates of rerankers whose folders leave them out: the prompt, and the answer tokens.

`known_rerankers.json` holds only facts, each with its source, keyed by the template's name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from embedlib.errors import ConfigError
from embedlib.models.spec import PairTemplate


@dataclass(frozen=True, kw_only=True)
class KnownReranker:
    """The template of one kind of reranker, and its answer tokens."""

    names: tuple[str, ...]
    """Hub names of the models that use this template."""
    template: PairTemplate
    true_token: str | None
    """The answer token for a relevant document; None: the models have a head of their own."""
    false_token: str | None
    """The answer token for an irrelevant document; None: the score is the logit of the other."""
    divisor: float = 1.0
    """The score is divided by it, before the activation."""


def known_reranker(template: str) -> KnownReranker:
    """Return the known reranker for the name of a template.

    Raises:
        ConfigError: if there is no template of this name.
    """
    known = _known_rerankers()
    if template not in known:
        raise ConfigError(f"template = {template!r} is not known; known: {', '.join(known)}")
    return known[template]


def template_names() -> tuple[str, ...]:
    """Return the names of all templates."""
    return tuple(_known_rerankers())


def template_of(model_name: str) -> str | None:
    """Return the template's name for a hub model; None if no template is known for it."""
    for template, reranker in _known_rerankers().items():
        if model_name in reranker.names:
            return template
    return None


@cache
def _known_rerankers() -> dict[str, KnownReranker]:
    path = files("embedlib.models") / "known_rerankers.json"
    parts = {field.name for field in fields(PairTemplate)}
    return {
        template: KnownReranker(
            names=tuple(facts["names"]),
            template=PairTemplate(**{key: facts[key] for key in facts if key in parts}),
            true_token=facts["true_token"],
            false_token=facts["false_token"],
            divisor=facts.get("divisor", 1.0),
        )
        for template, facts in json.loads(path.read_text(encoding="utf-8")).items()
    }

"""What the folders of some rerankers leave out: how they are asked, and what they answer.

Facts only, in `known_rerankers.json`, keyed by the name of the template, each with its source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from embedlib.errors import ConfigError
from embedlib.models.spec import PairTemplate


@dataclass(frozen=True, kw_only=True)
class KnownReranker:
    """How one kind of reranker is asked about a query and a document, and what it answers."""

    names: tuple[str, ...]
    """On the hub, of the models that are asked so."""
    template: PairTemplate
    true_token: str
    """The token that says that the document fits, and the one that says that it does not."""
    false_token: str


def known_reranker(template: str) -> KnownReranker:
    """Return what is known under the name of a template.

    Raises:
        ConfigError: there is no such template.
    """
    known = _known_rerankers()
    if template not in known:
        raise ConfigError(f"template = {template!r} is not known; known: {', '.join(known)}")
    return known[template]


def template_names() -> tuple[str, ...]:
    """Return the names of all templates."""
    return tuple(_known_rerankers())


def template_of(model_name: str) -> str | None:
    """Return the name of the template for a model on the hub, or None where none is known."""
    for template, reranker in _known_rerankers().items():
        if model_name in reranker.names:
            return template
    return None


@cache
def _known_rerankers() -> dict[str, KnownReranker]:
    path = files("embedlib.models") / "known_rerankers.json"
    return {
        template: KnownReranker(
            names=tuple(facts["names"]),
            template=PairTemplate(
                prefix=facts["prefix"],
                body=facts["body"],
                suffix=facts["suffix"],
                instruction=facts["instruction"],
                lines_apart=facts.get("lines_apart", False),
            ),
            true_token=facts["true_token"],
            false_token=facts["false_token"],
        )
        for template, facts in json.loads(path.read_text(encoding="utf-8")).items()
    }

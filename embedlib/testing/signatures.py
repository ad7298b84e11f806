"""The fields that `fake_spec` takes by name and type, for editors and type checkers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from embedlib.config import Similarity
from embedlib.models.spec import Head, LateInteraction, Module


class SpecFields(TypedDict, total=False):
    """Fields of `ModelSpec`, which says what they mean."""

    modules: tuple[Module, ...]
    dropped_token_id: int | None
    lowercase: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: Similarity
    truncate_dim: int | None
    max_active_dims: int | None
    head: Head | None
    late_interaction: LateInteraction | None

"""Which prompt goes in front of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.models.spec import ModelSpec

Task = Literal["query", "document"]

TASK_PROMPTS: Mapping[Task, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
"""Names tried in turn. Source: sentence-transformers, `encode_query` and `encode_document`."""


class Prompts:
    """A model's prompts by name, with those of the caller on top."""

    def __init__(self, spec: ModelSpec, config: Config) -> None:
        self.by_name = {**spec.prompts, **(config.prompts or {})}
        self.default_name = (
            spec.default_prompt_name
            if config.default_prompt_name is None
            else config.default_prompt_name
        )
        if self.default_name is not None:
            self._named(self.default_name)

    def resolve(self, prompt_name: str | None, prompt: str | None, task: Task | None = None) -> str:
        """Return the text to put in front: `prompt`, else the named one, the task's or the default.

        Raises:
            ConfigError: the name is unknown; the message lists the names there are.
        """
        if prompt is not None:
            if not isinstance(prompt, str):
                raise ConfigError(f"prompt = {prompt!r}; it must be a str")
            return prompt
        if prompt_name is None and task is not None:
            prompt_name = self.task_name(task)
        if prompt_name is None:
            prompt_name = self.default_name
        return "" if prompt_name is None else self._named(prompt_name)

    def task_name(self, task: Task) -> str | None:
        """Return the name of the prompt for queries or documents, if the model has one."""
        return next((name for name in TASK_PROMPTS[task] if name in self.by_name), None)

    def _named(self, name: str) -> str:
        if name not in self.by_name:
            known = ", ".join(map(repr, self.by_name)) or "none"
            raise ConfigError(f"prompt_name = {name!r}; this model's prompts are: {known}")
        return self.by_name[name]

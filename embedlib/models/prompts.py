"""Prompts around a text, chosen by name, by role or by task, and few-shot examples.

A model's prompts come from three places: the caller (`Config.prompts`), the model folder, and for
some models known_models.json. The first of them that has a prompt for a name or a role wins.

A prompt is a plain string in front of the text. Prompts of the caller and of known_models.json may
contain `{task}`, a placeholder for the task in words, and `{text}`: the part after it goes behind
the text. Prompts of a folder are used literally, as in sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

from embedlib.config import Config, check_examples
from embedlib.errors import ConfigError, shown
from embedlib.models.known_models import KnownModel
from embedlib.models.spec import ModelSpec

Role = Literal["query", "document"]
Origin = Literal["caller", "folder", "known"]
Examples = Sequence[Mapping[str, str]]

ROLES: tuple[Role, ...] = get_args(Role)
ROLE_PROMPTS: Mapping[Role, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}
"""Names tried in turn. Source: sentence-transformers, `encode_query` and `encode_document`."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The strings around one text."""

    prefix: str = ""
    suffix: str = ""
    """Goes behind the text; truncation shortens the text and keeps the suffix."""
    examples: str = ""
    """Goes before the prefix; its tokens do not count against `max_seq_length`."""


class Prompts:
    """A model's prompts: by name, by role (query or document) and by task."""

    def __init__(self, spec: ModelSpec, config: Config, known: KnownModel | None = None) -> None:
        """Merge the three sources: caller before folder before known models.

        Raises:
            ConfigError: if the default prompt has an unknown name, or if there are examples and the
                model takes none.
        """
        known = known or KnownModel()
        self._is_embedder = spec.head is None
        self._suffix = spec.suffix
        caller = config.prompts or {}
        known_names = known.templates
        folder = _without_silent(spec, known, known_names)
        for names in ROLE_PROMPTS.values():
            if any(name in folder or name in caller for name in names):  # under any name
                known_names = {name: known_names[name] for name in known_names if name not in names}
        self._role_names = known.role_names
        self.by_name = {**known_names, **folder, **caller}
        """Prompt by name, with its placeholders unfilled."""
        self._origins: dict[str, Origin] = {
            **dict.fromkeys(known_names, "known"),
            **dict.fromkeys(folder, "folder"),
            **dict.fromkeys(caller, "caller"),
        }
        self._query_tasks = known.query_tasks
        self._template, self.default_task = known.query_template, known.default_task
        if "{task}" in caller.get("query", ""):
            self._template, self.default_task = caller["query"], None
        self.default_name = (
            spec.default_prompt_name
            if config.default_prompt_name is None
            else config.default_prompt_name
        )
        if self.default_name is not None:
            self._named(self.default_name, "default_prompt_name")
        self._examples = config.examples or ()
        has_place = self.takes_examples and self.by_name["query"] == self._template
        if self._examples and not has_place:
            raise _refuse_examples()

    def resolve(
        self,
        prompt_name: str | None = None,
        prompt: str | None = None,
        role: Role | None = None,
        task: str | None = None,
        examples: Examples | None = None,
    ) -> Prompt:
        """Return `prompt` itself, else the prompt of the task, the name, the role, or the default.

        A role without a prompt gets an empty one, not the default prompt: that may be meant for the
        other role, and sentence-transformers' `encode_query` and `encode_document` never use it.

        Args:
            prompt_name: a key of `by_name`.
            prompt: the prompt as a literal string.
            role: whether the text is a query or a document.
            task: the name of a task, or words for `{task}` in the model's template.
            examples: replace those of the Config.

        Raises:
            ConfigError: if a name or task is unknown (the message lists the known ones), if the
                arguments contradict each other, or if the prompt has no place for examples.
        """
        few = self._examples if examples is None else check_examples(examples)
        if task is not None and not (prompt is None and prompt_name is None):
            raise ConfigError(
                "task= and prompt= (or prompt_name=) both choose the prompt; pass one"
            )
        if prompt is not None:
            if not isinstance(prompt, str):
                raise ConfigError(f"prompt = {shown(prompt)}; it must be a str")
            resolved = Prompt(prefix=prompt)
        elif task is not None:
            resolved = self._of_task(task, role, few)
        else:
            if prompt_name is None:
                prompt_name = self.default_name if role is None else self.role_name(role)
            resolved = self._of_name(prompt_name, few)
        if examples and not resolved.examples:
            raise _refuse_examples()
        return replace(resolved, suffix=resolved.suffix + self._suffix)

    def role_name(self, role: Role) -> str | None:
        """Return the name of the prompt for a role; None if the model has none.

        Raises:
            ConfigError: the role is neither "query" nor "document".
        """
        if role not in ROLES:
            raise ConfigError(f"role = {shown(role)}; it must be {' or '.join(map(repr, ROLES))}")
        names = (*ROLE_PROMPTS[role], self._role_names.get(role))
        return next((name for name in names if name in self.by_name), None)

    def origin(self, name: str) -> Origin:
        """Return the source that a named prompt comes from."""
        return self._origins[name]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Named tasks. If `takes_task_in_words` is true, `task` may also be any other string."""
        roles = {name for names in ROLE_PROMPTS.values() for name in names}
        return tuple(name for name in self.by_name if name not in roles) + tuple(self._query_tasks)

    @property
    def takes_task_in_words(self) -> bool:
        """Whether the query prompt has a place for a task in words."""
        return self._template is not None

    @property
    def takes_examples(self) -> bool:
        """Whether queries can have examples: their prompt must have a place for a response."""
        template = self._template or ""
        return "{task}" in template and template.partition("{text}")[2] != ""

    @cached_property
    def differ(self) -> bool:
        """Whether queries and documents get different prompts, and neither is the default."""
        if self.default_name is not None:
            return False
        query, document = (self.role_name(role) for role in ROLES)
        return self.by_name.get(query or "", "") != self.by_name.get(document or "", "")

    def begin(self, texts: Sequence[object]) -> bool:
        """Whether the first text begins with a prompt of queries or documents, put there by hand.

        Of a template only the part in front of the task has to be there.
        """
        first = texts[0] if texts else None
        names = [self.role_name(role) for role in ROLES]
        starts = [self.by_name[name].partition("{task}")[0].rstrip() for name in names if name]
        return isinstance(first, str) and any(start and first.startswith(start) for start in starts)

    def settings(self) -> dict[str, object]:
        """Return everything that determines the prompts, as JSON values for the fingerprint."""
        document = self.role_name("document")
        found: dict[str, object] = {
            "prompts": self.by_name,
            "default_prompt_name": self.default_name,
        }
        more = {
            "query_tasks": dict(self._query_tasks),
            "query_template": self._template,
            "default_task": self.default_task,
            "examples": [dict(example) for example in self._examples],
            "suffix": self._suffix,
            # The same prompts give other documents if one of another name is theirs.
            "document_prompt_name": None if document in ROLE_PROMPTS["document"] else document,
        }
        # A setting without effect must not change the fingerprint.
        return found | {name: value for name, value in more.items() if value}

    def _of_task(self, task: str, role: Role | None, examples: Examples) -> Prompt:
        if not isinstance(task, str) or not task:
            raise ConfigError(f"task = {task!r}; it must be a str that is not empty")
        if task in self.by_name:
            return self._of_name(task, examples)
        if task in self._query_tasks or self._template is not None:
            if role == "document":  # documents get the same prompt for every task
                return self._of_name(self.role_name(role), examples)
            if task in self._query_tasks:
                return Prompt(prefix=self._query_tasks[task])
            assert self._template is not None
            return self._fill(self._template, task, examples)
        known = ", ".join(map(repr, self.tasks)) or "none"
        raise ConfigError(
            f"task = {task!r:.80}; this model's tasks are: {known}; pass prompt= (--prompt) "
            "for any other"
        )

    def _of_name(self, name: str | None, examples: Examples) -> Prompt:
        if name is None:
            return Prompt()
        text = self._named(name)
        if self._origins.get(name, "folder") == "folder":
            return Prompt(prefix=text)
        return self._fill(text, self.default_task, examples)

    def _fill(self, template: str, task: str | None, examples: Examples) -> Prompt:
        """Fill a template with the task, and write the examples in the same form."""
        prefix, _, suffix = template.partition("{text}")
        if "{task}" in template and task is None:
            raise ConfigError(f"the prompt {template!r} needs a task; pass task=")
        block = ""
        if template == self._template and self.takes_examples:
            # Source: `set_examples` in FlagEmbedding, inference/embedder/decoder_only/icl.py.
            block = "".join(
                prefix.replace("{task}", example["instruct"])
                + example["query"]
                + suffix.replace("{task}", example["instruct"])
                + example["response"]
                + "\n\n"
                for example in examples
            )
        task = task or ""
        return Prompt(
            prefix=prefix.replace("{task}", task),
            suffix=suffix.replace("{task}", task),
            examples=block,
        )

    def _named(self, name: str, option: str = "prompt_name") -> str:
        if self._is_embedder and name in ROLES and name not in self.by_name:
            return ""  # every SentenceTransformer has these two names; a CrossEncoder has not
        if not isinstance(name, str) or name not in self.by_name:
            names = dict.fromkeys((*self.by_name, *(ROLES if self._is_embedder else ())))
            known = ", ".join(map(repr, names)) or (
                "none; pass prompt= (--prompt) for a text of your own"
            )
            raise ConfigError(f"{option} = {shown(name)}; this model's prompts are: {known}")
        return self.by_name[name]


def _without_silent(
    spec: ModelSpec, known: KnownModel, known_names: Mapping[str, str]
) -> dict[str, str]:
    """Return the folder's prompts without the empty ones of roles that have a known prompt.

    sentence-transformers 5.1 and later write an empty `query` and `document` into every folder they
    save, so there an empty prompt does not mean that the model takes none.
    """
    folder = dict(spec.prompts)
    for role, names in ROLE_PROMPTS.items():
        is_known = any(known_names.get(name) for name in names)
        is_known |= known.role_names.get(role) in spec.prompts
        given = [name for name in names if name in folder]
        if is_known and not any(folder[name] for name in given):
            for name in given:
                if name != spec.default_prompt_name:
                    del folder[name]
    return folder


def _refuse_examples() -> ConfigError:
    return ConfigError(
        "examples need a query prompt that has a place for them: call encode_query of "
        "BAAI/bge-en-icl, loaded by its hub name, or pass "
        'prompts={"query": "...{task}...{text}..."}'
    )

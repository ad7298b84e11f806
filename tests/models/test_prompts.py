from __future__ import annotations

import pytest

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.models.prompts import Prompts, Task
from embedlib.testing import fake_spec

SPEC = fake_spec(prompts={"query": "Q: ", "passage": "P: ", "sts": "S: "})


def test_a_text_beats_a_name_beats_the_task_beats_the_default() -> None:
    prompts = Prompts(SPEC, Config(default_prompt_name="passage"))
    assert prompts.resolve("sts", "text: ", "query") == "text: "
    assert prompts.resolve("sts", None, "query") == "S: "
    assert prompts.resolve(None, None, "query") == "Q: "
    assert prompts.resolve(None, None) == "P: "
    assert Prompts(SPEC, Config()).resolve(None, None) == ""


def test_an_empty_prompt_is_a_prompt() -> None:
    assert Prompts(SPEC, Config(default_prompt_name="passage")).resolve("sts", "", "query") == ""


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("search", ""):
        with pytest.raises(ConfigError) as caught:
            Prompts(SPEC, Config()).resolve(name, None)
        assert str(caught.value) == (
            f"prompt_name = {name!r}; this model's prompts are: 'query', 'passage', 'sts'"
        )
        assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match="prompts are: none"):
        Prompts(fake_spec(), Config()).resolve("query", None)


def test_an_unknown_default_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="'search'"):
        Prompts(SPEC, Config(default_prompt_name="search"))


@pytest.mark.parametrize(
    ("names", "task", "found"),
    [
        ({"query", "document"}, "query", "query"),
        ({"query", "document", "passage", "corpus"}, "document", "document"),
        ({"query", "passage", "corpus"}, "document", "passage"),
        ({"query", "corpus"}, "document", "corpus"),
        ({"query"}, "document", None),
        ({"document"}, "query", None),
        (set(), "query", None),
    ],
)
def test_the_prompt_of_a_task(names: set[str], task: Task, found: str | None) -> None:
    spec = fake_spec(prompts={name: f"{name}: " for name in names})
    prompts = Prompts(spec, Config())
    assert prompts.task_name(task) == found
    assert prompts.resolve(None, None, task) == (f"{found}: " if found else "")


def test_a_task_without_a_prompt_takes_the_default() -> None:
    spec = fake_spec(prompts={"query": "Q: "}, default_prompt_name="query")
    assert Prompts(spec, Config()).resolve(None, None, "document") == "Q: "


def test_the_callers_prompts_replace_those_of_the_same_name() -> None:
    prompts = Prompts(SPEC, Config(prompts={"query": "mine: ", "new": "N: "}))
    assert prompts.by_name == {"query": "mine: ", "passage": "P: ", "sts": "S: ", "new": "N: "}
    assert prompts.resolve("query", None) == "mine: "


@pytest.mark.parametrize("prompt", [3, b"Q: "])
def test_a_prompt_must_be_a_str(prompt: object) -> None:
    with pytest.raises(ConfigError, match="it must be a str"):
        Prompts(SPEC, Config()).resolve(None, prompt)  # type: ignore[arg-type]

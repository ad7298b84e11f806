from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any, get_args

import pytest

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.models.known_models import KnownModel, Truncation, known_model, read_entries
from embedlib.models.prompts import Prompt, Prompts, Role
from embedlib.models.spec import Head
from embedlib.testing import fake_spec

SPEC = fake_spec(prompts={"query": "Q: ", "passage": "P: ", "sts": "S: "})


def test_a_text_beats_a_name_beats_the_task_beats_the_default() -> None:
    prompts = Prompts(SPEC, Config(default_prompt_name="passage"))
    assert prompts.resolve("sts", "text: ", "query").prefix == "text: "
    assert prompts.resolve("sts", None, "query").prefix == "S: "
    assert prompts.resolve(None, None, "query").prefix == "Q: "
    assert prompts.resolve(None, None).prefix == "P: "
    assert Prompts(SPEC, Config()).resolve(None, None).prefix == ""


def test_an_empty_prompt_is_a_prompt() -> None:
    assert (
        Prompts(SPEC, Config(default_prompt_name="passage")).resolve("sts", "", "query").prefix
        == ""
    )


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("search", ""):
        with pytest.raises(ConfigError) as caught:
            Prompts(SPEC, Config()).resolve(name, None)
        assert str(caught.value) == (
            f"prompt_name = {name!r}; this model's prompts are: 'query', 'passage', 'sts', "
            "'document'"
        )
        assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match=r"prompts are: 'query', 'document'$"):
        Prompts(fake_spec(), Config()).resolve("passage", None)


def test_every_model_has_empty_prompts_for_queries_and_documents() -> None:
    # As every SentenceTransformer; they change neither the list of prompts nor the fingerprint.
    for name in ("query", "document"):
        prompts = Prompts(fake_spec(), Config(default_prompt_name=name))
        assert prompts.resolve(name) == prompts.resolve() == Prompt()
        assert prompts.by_name == {}
    assert Prompts(SPEC, Config()).resolve("document") == Prompt()
    assert Prompts(SPEC, Config()).resolve("query") != Prompt()
    head = Head(labels=("score",), activation="identity", reranker_activation="sigmoid")
    with pytest.raises(
        ConfigError, match=r"prompts are: none; pass prompt= \(--prompt\) for a text of your"
    ):
        Prompts(fake_spec(head=head), Config()).resolve("query")  # a CrossEncoder has none


def test_a_role_without_a_name_is_refused() -> None:
    role: Any = None
    with pytest.raises(ConfigError, match=r"^role = None; it must be 'query' or 'document'$"):
        Prompts(SPEC, Config()).role_name(role)


def test_an_unknown_default_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^default_prompt_name = 'search'; this model's prompts"):
        Prompts(SPEC, Config(default_prompt_name="search"))


@pytest.mark.parametrize(
    ("names", "role", "found"),
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
def test_the_prompt_of_a_task(names: set[str], role: Role, found: str | None) -> None:
    spec = fake_spec(prompts={name: f"{name}: " for name in names})
    prompts = Prompts(spec, Config())
    assert prompts.role_name(role) == found
    assert prompts.resolve(None, None, role).prefix == (f"{found}: " if found else "")


@pytest.mark.parametrize("default", ["query", "sts"])
def test_a_role_without_a_prompt_does_not_take_the_default(default: str) -> None:
    # The default may be the other role's prompt. sentence-transformers does the same: it adds an
    # empty prompt under each role's name to every model.
    spec = fake_spec(prompts={"query": "Q: ", "sts": "S: "}, default_prompt_name=default)
    for prompts in (Prompts(spec, Config()), Prompts(SPEC, Config(default_prompt_name=default))):
        assert prompts.resolve().prefix == spec.prompts[default]
        assert prompts.resolve(role="query").prefix == "Q: "
    assert Prompts(spec, Config()).resolve(role="document") == Prompt()
    only = fake_spec(prompts={"sts": "S: "}, default_prompt_name="sts")
    assert Prompts(only, Config()).resolve(role="query") == Prompt()


def test_the_callers_prompts_replace_those_of_the_same_name() -> None:
    prompts = Prompts(SPEC, Config(prompts={"query": "mine: ", "new": "N: "}))
    assert prompts.by_name == {"query": "mine: ", "passage": "P: ", "sts": "S: ", "new": "N: "}
    assert prompts.resolve("query", None).prefix == "mine: "


@pytest.mark.parametrize("prompt", [3, b"Q: "])
def test_a_prompt_must_be_a_str(prompt: object) -> None:
    with pytest.raises(ConfigError, match="it must be a str"):
        Prompts(SPEC, Config()).resolve(None, prompt)  # type: ignore[arg-type]


# Known prompts.

BGE = known_model("BAAI/bge-small-en-v1.5")
ICL = known_model("BAAI/bge-en-icl")
QWEN = known_model("Qwen/Qwen3-Embedding-0.6B")
GEMMA = known_model("google/embeddinggemma-300m")
SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


def prompts_of(known: KnownModel, folder: dict[str, str] | None = None, **options: Any) -> Prompts:
    return Prompts(fake_spec(prompts=folder or {}), Config(**options), known)


def test_a_known_prompt_is_for_queries_only_and_never_the_default() -> None:
    prompts = prompts_of(BGE)
    sentence = "Represent this sentence for searching relevant passages: "
    assert prompts.resolve(role="query") == Prompt(prefix=sentence)
    assert prompts.resolve(prompt_name="query") == Prompt(prefix=sentence)
    assert prompts.resolve(role="document") == prompts.resolve() == Prompt()
    assert prompts.origin("query") == "known"
    assert prompts.differ


def test_the_folder_and_the_caller_win_over_what_is_known() -> None:
    e5 = known_model("intfloat/e5-base-v2")
    assert prompts_of(e5).resolve(role="document").prefix == "passage: "
    # A role is found under any of its names.
    folder = prompts_of(e5, {"query": "Q: ", "corpus": "C: "})
    assert folder.resolve(role="query").prefix == "Q: "
    assert folder.resolve(role="document").prefix == "C: "
    assert (folder.origin("query"), folder.origin("corpus")) == ("folder", "folder")
    assert "document" not in folder.by_name
    caller = prompts_of(e5, {"query": ""}, prompts={"query": "mine: "})
    assert caller.resolve(role="query").prefix == "mine: "
    assert caller.origin("query") == "caller"
    assert caller.resolve(role="document").prefix == "passage: "
    caller = prompts_of(e5, prompts={"corpus": "mine: "})
    assert caller.resolve(role="document").prefix == "mine: "


def test_an_empty_prompt_of_a_saved_folder_hides_no_known_one() -> None:
    # sentence-transformers writes both names into every folder that it saves.
    saved = prompts_of(known_model("intfloat/e5-base-v2"), {"query": "", "document": ""})
    assert saved.resolve(role="query").prefix == "query: "
    assert saved.resolve(role="document").prefix == "passage: "
    assert saved.origin("query") == "known"
    # Nothing is known of bge's documents; the caller's empty prompt is meant.
    saved = prompts_of(BGE, {"query": "", "document": ""}, prompts={"query": ""})
    assert saved.resolve(role="query") == saved.resolve(role="document") == Prompt()
    assert saved.by_name == {"document": "", "query": ""}
    # Another name of the role has the folder's prompt, and a default is meant, too.
    e5 = known_model("intfloat/e5-base-v2")
    assert prompts_of(e5, {"document": "", "passage": "P: "}).resolve(role="document") == Prompt()
    spec = fake_spec(prompts={"query": ""}, default_prompt_name="query")
    assert Prompts(spec, Config(), e5).resolve() == Prompt()


def test_a_role_whose_prompt_has_a_name_of_the_model() -> None:
    harrier = known_model("microsoft/harrier-oss-v1-0.6b")
    folder = {
        "web_search_query": "Instruct: search\nQuery: ",
        "sts_query": "Instruct: sts\nQuery: ",
    }
    for others in ({}, {"query": "", "document": ""}):
        prompts = prompts_of(harrier, folder | others)
        assert prompts.resolve(role="query").prefix == folder["web_search_query"]
        assert prompts.resolve(role="document") == Prompt()
        assert prompts.origin("web_search_query") == "folder"
    later = prompts_of(harrier, folder | {"query": "Q: "})
    assert later.resolve(role="query").prefix == "Q: "
    assert prompts_of(harrier).resolve(role="query") == Prompt()


def test_the_folder_wins_for_every_name() -> None:
    folder = {"clustering": "own: ", "question answering": "Q&A: "}
    prompts = prompts_of(GEMMA, folder)
    assert prompts.origin("clustering") == "folder"
    for name, prefix in folder.items():
        assert prompts.resolve(prompt_name=name).prefix == prefix
        assert prompts.resolve(role="query", task=name).prefix == prefix


@pytest.mark.parametrize("name", ["", "bge-small-en-v1.5", "baai/bge-small-en-v1.5", "./BAAI/x"])
def test_names_are_not_guessed(name: str) -> None:
    assert known_model(name) == KnownModel()


def test_the_file_is_sound() -> None:
    entries = read_entries()
    names = [name for entry in entries for name in entry["models"]]
    assert len(names) == len(set(names))
    for entry in entries:
        assert entry["source"]
        known = known_model(entry["models"][0])
        assert known.prompts or known.query_template or known.role_names
        for prompt in (*known.prompts.values(), *known.query_tasks.values()):
            assert prompt
            assert "{" not in prompt
        assert known.truncation in get_args(Truncation)
        template = known.query_template
        assert (template is None) == (known.default_task is None)
        assert template is None or template.count("{task}") == 1
        # Queries of every known model get some prompt.
        folder = dict.fromkeys(known.role_names.values(), "Q: ")
        spec = fake_spec(prompts=folder)
        assert Prompts(spec, Config(), known).resolve(role="query") != Prompt()


# Tasks.


def test_a_task_in_words_fills_the_template() -> None:
    prompts = prompts_of(QWEN)
    assert prompts.resolve(role="query").prefix == f"Instruct: {SEARCH}\nQuery:"
    expected = Prompt(prefix="Instruct: Find {text} and {task}\nQuery:")  # literal braces
    assert prompts.resolve(role="query", task="Find {text} and {task}") == expected
    assert prompts.resolve(task="Find {text} and {task}") == expected
    # Documents are the same for every task.
    assert prompts.resolve(role="document", task="Find it") == Prompt()
    assert prompts.takes_task_in_words
    assert prompts.tasks == ()


def test_the_folders_own_query_prompt_stays_and_the_template_is_still_known() -> None:
    prompts = prompts_of(QWEN, {"query": "Own:"})
    assert prompts.resolve(role="query").prefix == "Own:"
    assert prompts.resolve(role="query", task="Find it").prefix == "Instruct: Find it\nQuery:"


def test_tasks_by_name() -> None:
    prompts = prompts_of(GEMMA, {"query": "task: search result | query: ", "STS": "S: "})
    assert prompts.resolve(role="query", task="question answering").prefix == (
        "task: question answering | query: "
    )
    assert prompts.resolve(role="document", task="question answering").prefix == (
        "title: none | text: "
    )
    for role in ("query", "document", None):
        clustering = prompts.resolve(role=role, task="clustering")  # type: ignore[arg-type]
        assert clustering.prefix == "task: clustering | query: "
    assert prompts.resolve(role="query", task="STS").prefix == "S: "
    assert set(prompts.tasks) >= {"retrieval", "clustering", "STS"}
    assert not {"query", "document"} & set(prompts.tasks)


def test_an_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"^task = 'x'; this model's tasks are: 'sts'; pass promp"
    ):
        Prompts(SPEC, Config()).resolve(role="query", task="x")
    with pytest.raises(ConfigError, match="tasks are: none"):
        prompts_of(BGE).resolve(role="document", task="x")


@pytest.mark.parametrize("task", ["", 3])
def test_a_task_is_a_str(task: object) -> None:
    with pytest.raises(ConfigError, match="it must be a str that is not empty"):
        prompts_of(QWEN).resolve(task=task)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"prompt": ""}, {"prompt_name": "query"}])
def test_a_task_and_a_prompt_contradict_each_other(other: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="both choose the prompt"):
        prompts_of(QWEN).resolve(task="Find it", **other)


def test_a_template_of_the_caller() -> None:
    prompts = prompts_of(QWEN, prompts={"query": "[{task}] {text} [end of {task}]"})
    assert prompts.resolve(role="query", task="find") == Prompt(
        prefix="[find] ", suffix=" [end of find]"
    )
    with pytest.raises(ConfigError, match="needs a task; pass task="):
        prompts.resolve(role="query")
    assert prompts.differ


def test_what_a_folder_says_is_taken_to_the_letter() -> None:
    prompts = prompts_of(KnownModel(), {"query": "{task} {text} x"})
    assert prompts.resolve(role="query") == Prompt(prefix="{task} {text} x")
    assert not prompts.takes_task_in_words


# Few-shot.

EXAMPLE = {"instruct": "I", "query": "q", "response": "r"}


def test_examples_have_the_form_of_a_query() -> None:
    other = {"instruct": "J", "query": "{task}", "response": "{text}"}
    prompts = prompts_of(ICL, examples=[EXAMPLE, other])
    resolved = prompts.resolve(role="query", task="T")
    assert resolved == Prompt(
        prefix="<instruct>T\n<query>",
        suffix="\n<response>",
        examples="<instruct>I\n<query>q\n<response>r\n\n"
        "<instruct>J\n<query>{task}\n<response>{text}\n\n",
    )
    assert prompts.resolve(role="query").examples == resolved.examples
    assert prompts.resolve(role="document") == Prompt()
    assert prompts.resolve(role="query", examples=[]).examples == ""
    assert prompts.resolve(role="query", examples=[EXAMPLE]).examples == (
        "<instruct>I\n<query>q\n<response>r\n\n"
    )
    assert prompts_of(ICL).resolve(role="query").examples == ""


def test_a_template_of_the_caller_takes_examples() -> None:
    template = "<instruct>{task}\n<query>{text}\n<response>"
    prompts = prompts_of(KnownModel(), prompts={"query": template}, examples=[EXAMPLE])
    known = prompts_of(ICL, examples=[EXAMPLE])
    assert prompts.resolve(role="query", task="T") == known.resolve(role="query", task="T")


@pytest.mark.parametrize("known", [KnownModel(), BGE, QWEN, GEMMA])
def test_a_model_without_a_place_for_examples_refuses_them(known: KnownModel) -> None:
    with pytest.raises(ConfigError, match="examples need a query prompt"):
        prompts_of(known, examples=[EXAMPLE])
    with pytest.raises(ConfigError, match="examples need a query prompt"):
        prompts_of(known).resolve(role="query", examples=[EXAMPLE])


@pytest.mark.parametrize("options", [{"folder": {"query": "Own:"}}, {"prompts": {"query": "Own:"}}])
def test_examples_that_no_query_would_get_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="examples need a query prompt"):
        prompts_of(ICL, examples=[EXAMPLE], **options)


@pytest.mark.parametrize("where", [{"role": "document"}, {"prompt": "x"}, {}])
def test_examples_of_a_call_that_gets_none_are_refused(where: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="examples need a query prompt"):
        prompts_of(ICL).resolve(examples=[EXAMPLE], **where)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (
            [EXAMPLE, {"query": "q"}],
            r"examples\[1\] = .*; it must have the keys instruct, query, r",
        ),
        ([{**EXAMPLE, "query": 3}], r"examples\[0\] = .* each with a str"),
        ([{**EXAMPLE, "more": ""}], r"examples\[0\]"),
        (["a"], r"examples\[0\] = 'a'"),
    ],
)
def test_examples_are_checked(examples: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(examples=examples)
    with pytest.raises(ConfigError, match=message):
        prompts_of(ICL).resolve(role="query", examples=examples)


def test_examples_of_a_config_do_not_change_with_the_callers() -> None:
    mine = dict(EXAMPLE)
    config = Config(examples=[mine])
    mine["query"] = "changed"
    assert config.examples == (EXAMPLE,)
    assert replace(config, threads=1).examples == (EXAMPLE,)
    assert pickle.loads(pickle.dumps(config)) == config


# The settings that enter the fingerprint.


def test_most_models_have_two_settings() -> None:
    # Their fingerprints date from before tasks and examples existed.
    assert Prompts(SPEC, Config()).settings() == {
        "prompts": {"query": "Q: ", "passage": "P: ", "sts": "S: "},
        "default_prompt_name": None,
    }


def test_settings_differ_where_prompts_may() -> None:
    found = [
        prompts_of(KnownModel()),
        prompts_of(BGE),
        prompts_of(QWEN),
        prompts_of(QWEN, {"query": "Own:"}),
        prompts_of(GEMMA),
        prompts_of(ICL),
        prompts_of(ICL, examples=[EXAMPLE]),
        prompts_of(ICL, examples=[EXAMPLE, EXAMPLE]),
    ]
    texts = [json.dumps(prompts.settings(), sort_keys=True) for prompts in found]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("folder", "default", "differ"),
    [
        ({}, None, False),
        ({"query": "", "document": ""}, None, False),
        ({"query": "x", "passage": "x"}, None, False),
        ({"sts": "S: "}, None, False),
        ({"query": "x"}, None, True),
        ({"query": "x"}, "query", False),
        ({"query": "x", "document": "y"}, None, True),
        ({"document": "y"}, None, True),
    ],
)
def test_whether_queries_and_documents_differ(
    folder: dict[str, str], default: str | None, differ: bool
) -> None:
    assert prompts_of(KnownModel(), folder, default_prompt_name=default).differ is differ

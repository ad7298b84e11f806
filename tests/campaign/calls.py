"""Bad calls: every public callable, with arguments drawn from its own signature.

A call must end with an error of embedlib in one line, or with a right result. A result is wrong if
a value was taken that is not what the annotation says ("false" as a switch), or if the vectors are
not those of the texts: a fake engine's vectors tell from which text and prompt they were made.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

import embedlib
from embedlib import Classifier, Config, Document, Embedder, Reranker
from embedlib.indexing import SourceOptions
from embedlib.indexing.options import IndexOptions
from embedlib.testing import FakeSink, FakeStore
from tests.campaign import oracle
from tests.campaign.hints import conforms, hints_of
from tests.campaign.odd_values import draw_odd
from tests.campaign.right_values import FAKE_SINK, draw_right
from tests.campaign.verdict import Judge, Verdict, finding, judge_error

Arguments = dict[str, Any]
LEFT_OUT: Final = ("from_engine",)
"""Its arguments are an engine and a spec: what authors of engines pass, not users."""
CHANGES_SESSION: Final = ("close", "calibrate", "max_seq_length")
ANSWER_SECONDS = 9.0
MAX_ITEMS = 10_000


@dataclass(frozen=True)
class Target:
    """A callable, the annotations of its parameters, and the judge of its results.

    Attributes:
        name: for findings.
        call: takes the arguments by name.
        hints: the annotation of each parameter.
        required: parameters that are always given.
        is_right: says what is wrong with the result of right arguments; "": nothing.
    """

    name: str
    call: Callable[..., Any]
    hints: dict[str, Any]
    required: tuple[str, ...]
    is_right: Callable[[Arguments, Any], str]


@contextmanager
def open_judge(folder: Path) -> Iterator[Judge]:
    """Open a judge whose sessions run on fake engines."""
    if find_spec("torch") is not None:
        import_module("torch")  # here, or the first call for a tensor would take too long
    with ExitStack() as stack:
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        targets = make_targets(stack, loop)

        def judge(rng: random.Random) -> Verdict:
            return judge_call(rng.choice(targets), rng)

        yield judge


def judge_call(target: Target, rng: random.Random) -> Verdict:
    """Draw the arguments of one call, make it, and judge how it ended."""
    arguments, labels = _draw_arguments(target, rng)
    what = f"{target.name}({', '.join(f'{name}={label}' for name, label in labels.items())})"
    seen = {name: _item(name, value) for name, value in arguments.items()}
    wrong = [name for name in labels if not conforms(seen[name], target.hints[name])]
    try:
        result = target.call(**arguments)
    except Exception as error:
        return judge_error(error, what)
    if wrong:
        return finding("taken in silence", f"{what}: {', '.join(wrong)}: of another type")
    complaint = target.is_right(seen, result)
    return finding("wrong result", f"{what}: {complaint}") if complaint else Verdict("right", what)


def _item(name: str, value: Any) -> Any:
    """Return the text of an array without a dimension, which models take for a text."""
    is_item = isinstance(value, np.ndarray) and value.shape == ()
    return value.item() if is_item and name in ("inputs", "sentences", "texts") else value


def _draw_arguments(target: Target, rng: random.Random) -> tuple[Arguments, dict[str, str]]:
    """Return the arguments by name and what to call them; one to three are odd."""
    others = [name for name in target.hints if name not in target.required]
    names = [*target.required, *rng.sample(others, min(len(others), rng.randrange(4)))]
    odd = set(rng.sample(names, min(len(names), rng.choice((0, 1, 1, 1, 2, 3)))))
    arguments, labels = {}, {}
    for name in names:
        value = draw_odd(rng) if name in odd else draw_right(rng, name, target.name)
        labels[name], arguments[name] = value
    return arguments, labels


# The targets.


def make_targets(stack: ExitStack, loop: asyncio.AbstractEventLoop) -> list[Target]:
    """Return every public callable; the stack closes the sessions that they belong to."""
    kinds = (Embedder, Reranker, Classifier)
    of_sessions = [list(_session_targets(stack, loop, kind)) for kind in kinds]
    return [*itertools.chain(*of_sessions), *_function_targets(stack)]


def _session_targets(
    stack: ExitStack, loop: asyncio.AbstractEventLoop, kind: Any
) -> Iterator[Target]:
    """Yield the public methods of a class of session, its constructor and its settable limit."""
    session = stack.enter_context(oracle.make_session(kind))
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or name in LEFT_OUT:
            continue
        hints = hints_of(method, method.__module__)
        yield Target(
            f"{kind.__name__}.{name}",
            _on_fresh(kind, name) if name in CHANGES_SESSION else _finished(session, name, loop),
            hints,
            _required(method),
            oracle.judge_of(kind, name),
        )
    yield Target(
        f"{kind.__name__}.max_seq_length = ",
        lambda value: _set_limit(kind, value),
        {"value": int},
        ("value",),
        _no_complaint,
    )


def _finished(session: Any, name: str, loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """Return a method whose futures, coroutines and iterators are waited for."""

    def call(**arguments: Any) -> Any:
        result = getattr(session, name)(**arguments)
        if inspect.isasyncgen(result):
            return loop.run_until_complete(_first_of(result))
        if inspect.iscoroutine(result):
            return loop.run_until_complete(result)
        if isinstance(result, Future):
            return result.result(ANSWER_SECONDS)
        return list(itertools.islice(result, MAX_ITEMS)) if inspect.isgenerator(result) else result

    return call


def _on_fresh(kind: Any, name: str) -> Callable[..., Any]:
    """Return a method that runs on a session of its own, because it changes it."""

    def call(**arguments: Any) -> Any:
        with oracle.make_session(kind) as session:
            return getattr(session, name)(**arguments)

    return call


def _set_limit(kind: Any, value: Any) -> None:
    with oracle.make_session(kind) as session:
        session.max_seq_length = value


def _required(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters without a default, and the texts of a method whose default is None."""
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(
        each.name
        for each in parameters
        if each.name != "self"
        and each.kind in named
        and (each.default is each.empty or each.name == "inputs")
    )


async def _first_of(items: AsyncGenerator[Any, None]) -> list[Any]:
    """Return the first items of an asynchronous iterator, and close it."""
    found: list[Any] = []
    async with aclosing(items):
        async for item in items:
            found.append(item)
            if len(found) == MAX_ITEMS:
                break
    return found


def _function_targets(stack: ExitStack) -> Iterator[Target]:
    """Yield the functions and option classes of the package."""
    for kind in (Config, IndexOptions, SourceOptions):
        hints = hints_of(kind, kind.__module__)
        yield Target(kind.__name__, kind, hints, _required(kind), _no_complaint)
    embedder = stack.enter_context(oracle.make_session(Embedder))

    def index(**arguments: Any) -> Any:
        sink = arguments.pop("sink")
        store = FakeStore()
        given = FakeSink(store) if sink is FAKE_SINK else sink
        return embedlib.index(sink=given, **{"embedder": embedder, **arguments}), store

    def search(**arguments: Any) -> Any:
        sink = arguments.pop("sink")
        given = FakeSink(stored) if sink is FAKE_SINK else sink
        return embedlib.search(sink=given, **{"embedder": embedder, **arguments})

    stored = FakeStore()
    rows = [Document(id=str(number), text=f"text {number}") for number in range(20)]
    embedlib.index(rows, FakeSink(stored), embedder=embedder)
    options = hints_of(IndexOptions, IndexOptions.__module__)
    index_hints = {**hints_of(embedlib.index, embedlib.index.__module__), **options}
    yield Target("index", index, index_hints, ("source", "sink"), oracle.judge_index)
    search_hints = hints_of(embedlib.search, embedlib.search.__module__)
    yield Target("search", search, search_hints, ("question", "sink"), oracle.judge_search)


def _no_complaint(_arguments: Arguments, _result: Any) -> str:
    return ""

"""A prefix that sequences share is computed once, and the vectors stay the same."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs import attention_blocks, graph, stages
from embedlib.engines.openvino.graphs.graph import build_stages
from embedlib.engines.openvino.graphs.graph_options import GraphOptions
from embedlib.engines.openvino.kept.model_cache import ModelCache
from embedlib.engines.openvino.library import ov
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.running import kept_prefixes
from embedlib.engines.openvino.running.kept_prefixes import NUM_COMPARED, KeptPrefixes, Use
from embedlib.engines.openvino.sizes.prefix_sizes import (
    MAX_KEPT_TOKENS,
    bytes_per_token,
    max_kept_bytes,
)
from embedlib.models.spec import Encoder, ModelSpec, Pooling
from embedlib.testing import fake_spec, make_batch
from tests.comparing import relative_errors
from tests.machines import needs_bf16
from tests.tiny_encoders import CASES, HIDDEN, LAST, MAX_TOKENS, PLAIN, computed, weights_of
from tests.waiting import WAIT_SECONDS

MIN_PREFIX = 3
PREFIX = [5, 7, 9, 11, 13, 15, 17, 19]
PLAIN_CAUSAL = replace(PLAIN, is_causal=True)
FAMILIES = {
    name: replace(CASES[name][0], is_causal=True)
    for name in ("position-bias-window", "capped-sandwich-window", "two-ropes", "rope-int8", "cap")
}


def spec_of(encoder: Encoder, pooling: Pooling = LAST) -> ModelSpec:
    spec = fake_spec(MAX_TOKENS)
    return replace(spec, encoder=encoder, modules=(pooling,), embedding_dim=HIDDEN)


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kept_prefixes, "MIN_PREFIX_TOKENS", MIN_PREFIX)
        patched.setattr(kept_prefixes, "MAX_KEPT_TOKENS", 20)
        yield


def prefixes_of(engine: OpenVINOEngine) -> KeptPrefixes:
    return engine._models._prefixes


def kept(engine: OpenVINOEngine) -> list[list[int]]:
    return [prefix.ids.tolist() for prefix in prefixes_of(engine)._prefixes]


@pytest.fixture(scope="module", params=[*FAMILIES, "in blocks", "in stages"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OpenVINOEngine, OpenVINOEngine]]:
    """Yield an engine that keeps prefixes and one that finds none."""
    others = {
        "in blocks": FAMILIES["capped-sandwich-window"],
        # Of three layers: what goes from stage to stage lies in two tensors by turns.
        "in stages": replace(CASES["rope-in-windows"][0], is_causal=True),
    }
    spec = spec_of({**FAMILIES, **others}[request.param])
    weights = weights_of(spec, np.random.default_rng(0))
    cache = ModelCache(tmp_path_factory.mktemp("cache"), "these weights")
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "in blocks":
            patched.setattr(graph, "is_in_blocks", lambda *_, **__: True)
            patched.setattr(attention_blocks, "MAX_WHOLE_TOKENS", 2)
            patched.setattr(attention_blocks, "BLOCK_SCORES", 3 * MAX_TOKENS)
            patched.setattr(attention_blocks, "MIN_BLOCK_QUERIES", 2)
        if request.param == "in stages":
            keeping = OpenVINOEngine(spec, weights, Layout(threads=1, shares_lanes=True))
        else:
            # Imported from the cache; OpenVINO's has lost parts of a graph before.
            keeping = OpenVINOEngine(spec, weights, Layout(threads=1), cache=cache)
    forgetting = OpenVINOEngine(spec, weights, Layout(threads=1))
    yield keeping, without_prefixes(forgetting)
    keeping.close()
    forgetting.close()


def without_prefixes(engine: OpenVINOEngine) -> OpenVINOEngine:
    prefixes = prefixes_of(engine)
    nothing = prefixes._use_of(prefixes._empty)
    prefixes.use = lambda batch: nothing  # type: ignore[method-assign]
    return engine


PARTS = st.lists(st.integers(1, 3), min_size=1, max_size=6)
SEQUENCES = st.builds(
    lambda length, tail: [*PREFIX[:length], *tail], st.sampled_from([0, 4, 8, 8]), PARTS
)
IDS = st.lists(SEQUENCES, min_size=1, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(Lane), IDS, st.booleans()))


@settings(max_examples=12)
@given(calls=CALLS)
def test_vectors_are_the_same(
    engines: tuple[OpenVINOEngine, OpenVINOEngine],
    calls: list[tuple[Lane, list[list[int]], bool]],
) -> None:
    keeping, forgetting = engines
    for lane, ids, is_behind_failure in calls:
        if is_behind_failure:
            keeping._models._note_failure(0, RuntimeError("of a batch"))
        batch = make_batch(ids, lane)
        errors = relative_errors(computed(keeping, batch), computed(forgetting, batch))
        assert errors.max() <= 2e-5


def test_a_prefix_that_is_dropped_is_freed_though_a_request_has_read_it(
    engines: tuple[OpenVINOEngine, OpenVINOEngine],
) -> None:
    keeping, forgetting = engines
    batch = make_batch([[*PREFIX, 4]], Lane.QUERY)
    for _ in range(3):
        computed(keeping, batch)
    prefixes = prefixes_of(keeping)
    arrays = [weakref.ref(array) for one in prefixes._prefixes for array in one.arrays.values()]
    assert arrays
    prefixes._prefixes = ()
    assert not any(array() is not None for array in arrays)
    errors = relative_errors(computed(keeping, batch), computed(forgetting, batch))
    assert errors.max() <= 2e-5


def test_a_query_that_is_interrupted_while_inputs_are_set_leaves_nothing_to_the_next(
    engines: tuple[OpenVINOEngine, OpenVINOEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping, forgetting = engines
    batch = make_batch([[*PREFIX, 4]], Lane.QUERY)
    for _ in range(3):
        expected = keeping.compute(batch)

    def interrupt(array: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stages, "weakref", SimpleNamespace(ref=interrupt))
        with pytest.raises(KeyboardInterrupt):
            keeping.compute(make_batch([[3, 4]], Lane.QUERY))
    assert (keeping.compute(batch) == expected).all()
    assert relative_errors(expected, computed(forgetting, batch)).max() <= 2e-5


def test_a_prefix_is_computed_once_and_only_the_rest_of_later_sequences(
    engines: tuple[OpenVINOEngine, OpenVINOEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping, forgetting = engines
    before: list[int] = []
    use = prefixes_of(keeping).use

    def spy(batch: Batch) -> Any:
        found = use(batch)
        before.append(found.num_before)
        return found

    monkeypatch.setattr(prefixes_of(keeping), "use", spy)
    monkeypatch.setattr(prefixes_of(keeping), "_prefixes", ())
    front = [21, 22, 23, 24, 25, 26]
    batches = [
        make_batch([[*front, 1]], Lane.QUERY),
        make_batch([[*front, 2, 3]], Lane.QUERY),
        make_batch([[*front, 3], [*front, 4, 5]], Lane.BULK),
        make_batch([[*front[:4], 3], [*front, 4, 5]], Lane.BULK),
        make_batch([[*front, 3], [1, 2]], Lane.BULK),
    ]
    for batch in batches:
        errors = relative_errors(computed(keeping, batch), computed(forgetting, batch))
        assert errors.max() <= 2e-5
    assert before == [0, 0, 6, 4, 0]
    assert sorted(kept(keeping)) == [front[:4], front]


@pytest.fixture
def prefixes() -> KeptPrefixes:
    """Those of a graph that nobody computes."""
    return KeptPrefixes({"kept.k": 1}, {"kept.k": np.zeros((1, 0, 2), np.float32)})


def keep(prefixes: KeptPrefixes, use: Use) -> None:
    if len(use.keep):
        prefixes.keep(use, [np.zeros((1, len(use.keep), 2), np.float32)])


def see(prefixes: KeptPrefixes, ids: list[int], lane: Lane = Lane.QUERY) -> Use:
    """Return what a batch of one sequence takes, as if it were computed."""
    use = prefixes.use(make_batch([ids], lane))
    keep(prefixes, use)
    return use


def lengths(prefixes: KeptPrefixes) -> list[int]:
    return [len(prefix.ids) for prefix in prefixes._prefixes]


def test_what_was_used_longest_ago_is_dropped_within_its_lane(prefixes: KeptPrefixes) -> None:
    def find(number: int, length: int, lane: Lane) -> None:
        for tail in (30, 31):
            see(prefixes, [*[number] * length, tail], lane)

    find(3, 15, Lane.BULK)
    find(1, 9, Lane.QUERY)
    find(2, 11, Lane.QUERY)
    assert lengths(prefixes) == [15, 9, 11], "no more than there is room for"
    find(1, 9, Lane.QUERY)
    find(4, 5, Lane.QUERY)
    found = {int(prefix.ids[0]): len(prefix.ids) for prefix in prefixes._prefixes}
    assert found == {3: 15, 1: 9, 4: 5}


@pytest.mark.parametrize(
    ("num_shared", "expected"), [(MIN_PREFIX - 1, []), (MIN_PREFIX, [MIN_PREFIX]), (21, [20])]
)
def test_a_prefix_is_worth_keeping_and_has_room(
    num_shared: int, expected: list[int], prefixes: KeptPrefixes
) -> None:
    for tail in (1, 2):
        see(prefixes, [*[7] * num_shared, tail])
    assert lengths(prefixes) == expected


@pytest.mark.parametrize(
    ("more", "expected"), [(MIN_PREFIX - 1, [5]), (MIN_PREFIX, [5, 5 + MIN_PREFIX])]
)
def test_a_longer_prefix_is_kept_where_that_is_worth_it(
    more: int, expected: list[int], prefixes: KeptPrefixes
) -> None:
    for middle in ([], [8] * more):
        for tail in (1, 2):
            see(prefixes, [*[7] * 5, *middle, tail])
    assert lengths(prefixes) == expected


@pytest.mark.parametrize(("batch", "num_kept"), [([[7] * 30], 20), ([[7] * 6, [9] * 8], 5)])
def test_of_a_batch_nothing_is_kept_but_its_first_tokens(
    batch: list[list[int]], num_kept: int, prefixes: KeptPrefixes
) -> None:
    prefixes.use(make_batch(batch, Lane.QUERY))
    (ids,) = prefixes._latest[Lane.QUERY]
    assert (ids.tolist(), ids.base) == ([7] * num_kept, None)


def test_the_last_token_is_never_kept(prefixes: KeptPrefixes) -> None:
    for _ in range(2):
        see(prefixes, [7] * 6)
    assert lengths(prefixes) == [5]


def test_each_lane_finds_prefixes_and_either_uses_them(prefixes: KeptPrefixes) -> None:
    see(prefixes, [*[7] * 6, 1], Lane.BULK)
    see(prefixes, [*[7] * 6, 2], Lane.QUERY)
    assert lengths(prefixes) == []
    see(prefixes, [*[7] * 6, 3], Lane.BULK)
    assert see(prefixes, [*[7] * 6, 4], Lane.QUERY).num_before == 6
    assert see(prefixes, [*[7] * 4, 5, 6], Lane.QUERY).num_before == 4
    assert [(len(one.ids), one.lane) for one in prefixes._prefixes] == [
        (6, Lane.BULK),
        (4, Lane.BULK),
    ], "a part of it is of the lane that found it"


def test_a_part_of_a_prefix_is_copied_once(prefixes: KeptPrefixes) -> None:
    for tail in (1, 2):
        see(prefixes, [*[7] * 9, tail])
    first, second = (see(prefixes, [*[7] * 4, tail, 8]) for tail in (5, 6))
    assert first.num_before == second.num_before == 4
    assert first.arrays["kept.k"] is second.arrays["kept.k"]


def test_a_prefix_that_two_batches_leave_is_kept_once(prefixes: KeptPrefixes) -> None:
    see(prefixes, [*[7] * 6, 1])
    for use in [prefixes.use(make_batch([[*[7] * 6, tail]], Lane.QUERY)) for tail in (2, 3)]:
        keep(prefixes, use)
    assert lengths(prefixes) == [6]


def test_a_query_of_another_thread_waits_for_none_that_is_interrupted(
    prefixes: KeptPrefixes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a signal handler does, which waits for it."""
    shared = kept_prefixes.num_shared
    for tail in (1, 2):
        see(prefixes, [*[7] * 6, tail])

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(kept_prefixes, "num_shared", shared)
        asking = (threading.Thread(target=see, args=(prefixes, ids), daemon=True) for ids in others)
        for thread in asking:
            thread.start()
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
        return shared(*given)

    others = [[*[7] * 6, 3], *([*[9] * 5, tail] for tail in (1, 2))]
    monkeypatch.setattr(kept_prefixes, "num_shared", interrupted)
    assert see(prefixes, [*[7] * 6, 4]).num_before == 6
    assert lengths(prefixes) == [6], "what others kept meanwhile is lost"
    see(prefixes, [*[9] * 5, 3])
    assert sorted(lengths(prefixes)) == [5, 6], "and found again"


@pytest.mark.parametrize(("num_others", "expected"), [(NUM_COMPARED - 1, [6]), (NUM_COMPARED, [])])
def test_prompts_may_take_turns(
    num_others: int, expected: list[int], prefixes: KeptPrefixes
) -> None:
    see(prefixes, [*[7] * 6, 1])
    for number in range(num_others):
        see(prefixes, [10 + number] * 6)
    see(prefixes, [7] * 2)  # too short to be compared with
    see(prefixes, [*[7] * 6, 2])
    assert lengths(prefixes) == expected


def test_what_the_plan_counts_is_what_is_kept() -> None:
    encoder = FAMILIES["rope-int8"]
    spec = spec_of(encoder)
    engine = OpenVINOEngine(spec, weights_of(spec, np.random.default_rng(0)), Layout(threads=1))
    for tail in (1, 2):
        computed(engine, make_batch([[*PREFIX, tail]]))
    assert num_bytes(engine) == len(PREFIX) * bytes_per_token(encoder, is_bf16=False)
    most = MAX_KEPT_TOKENS * bytes_per_token(encoder, is_bf16=False)
    assert max_kept_bytes(spec, is_bf16=False) == 2 * most, "each lane has as much"
    assert max_kept_bytes(spec_of(PLAIN), is_bf16=False) == 0
    engine.close()


def test_an_engine_that_is_closed_keeps_nothing() -> None:
    spec = spec_of(PLAIN_CAUSAL)
    weights = weights_of(spec, np.random.default_rng(0))
    engine = OpenVINOEngine(spec, weights, Layout(threads=1))
    for tail in (1, 2, 3):
        computed(engine, make_batch([[*PREFIX, tail]]))
    (prefix,) = prefixes_of(engine)._prefixes
    arrays = [weakref.ref(array) for array in prefix.arrays.values()]
    assert arrays
    del prefix
    engine.close()
    assert not any(array() is not None for array in arrays)


def test_keys_and_values_of_a_layer_are_not_held_until_the_vectors_are_computed() -> None:
    spec = spec_of(PLAIN_CAUSAL)
    weights = weights_of(spec, np.random.default_rng(0))
    [stage] = build_stages(spec, weights, GraphOptions(multiplier="mlas"))
    compiled = ov.Core().compile_model(stage, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    done = {
        node.get_friendly_name(): int(node.get_rt_info()["execOrder"].astype(str))
        for node in compiled.get_runtime_model().get_ops()
    }
    first_layer = [done[result.get_friendly_name()] for result in stage.results[:2]]
    products = sorted(number for name, number in done.items() if name.startswith("MatMul"))
    assert max(first_layer) < products[-2]


@needs_bf16
@pytest.mark.parametrize("shares_lanes", [False, True])
def test_in_bf16_what_is_kept_is_in_bf16(shares_lanes: bool) -> None:
    encoder = FAMILIES["two-ropes"]
    spec = spec_of(encoder)
    weights = weights_of(spec, np.random.default_rng(0))
    layout = Layout(threads=1, precision="bf16", shares_lanes=shares_lanes)
    keeping = OpenVINOEngine(spec, weights, layout)
    forgetting = without_prefixes(OpenVINOEngine(spec, weights, layout))
    exact = OpenVINOEngine(spec, weights, Layout(threads=1))
    for tail in (1, 2, 3):
        batch = make_batch([[*PREFIX, tail]])
        found, expected = (computed(engine, batch) for engine in (keeping, forgetting))
        error = relative_errors(expected, computed(exact, batch)).max()
        assert 0 < relative_errors(found, computed(exact, batch)).max() < 3 * error
    assert kept(keeping) == [PREFIX]
    assert num_bytes(keeping) == len(PREFIX) * bytes_per_token(encoder, is_bf16=True)
    for engine in (keeping, forgetting, exact):
        engine.close()


def num_bytes(engine: OpenVINOEngine) -> int:
    (prefix,) = prefixes_of(engine)._prefixes
    arrays: list[NDArray[np.floating]] = list(prefix.arrays.values())
    return sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("pooling", [Pooling(modes=("mean",)), Pooling(modes=("cls",))])
def test_models_whose_vectors_need_every_token_keep_none(pooling: Pooling) -> None:
    spec = spec_of(FAMILIES["cap"], pooling)
    engine = OpenVINOEngine(spec, weights_of(spec, np.random.default_rng(0)), Layout(threads=1))
    for tail in (1, 2):
        use = prefixes_of(engine).use(make_batch([[*PREFIX, tail]]))
        assert (len(use.keep), use.num_before) == (0, 0)
    engine.close()

"""How a model is to run on the CPU: its lanes and batches, and what is told of its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedlib.config import Config
from embedlib.engines.kind import ChosenPrecision, EnginePlan
from embedlib.engines.openvino.kept import float32_copy
from embedlib.engines.openvino.plans import memory
from embedlib.engines.openvino.plans.memory import MemoryNeeds, memory_needs
from embedlib.engines.openvino.plans.planning import (
    choose_profile,
    describe_memory,
    needs_of,
    profile_key,
    shares_lanes,
)
from embedlib.engines.profile import Profile
from embedlib.engines.select import plan_engine
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.system.memory import Memory, Room, gib
from embedlib.version import __version__
from tests.machines import fake_machine

CONFIG = Config(threads=2, precision="float32")
FOUND = Profile(max_batch_tokens=300, num_streams=2, shares_lanes=False, library="any")


@pytest.fixture(autouse=True)
def _no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.Machine, "cpu_features", lambda _: frozenset())


@pytest.fixture
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


@pytest.fixture
def narrow(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("mistral"))


def scaled(files: ModelFiles, layers: int = 24) -> ModelFiles:
    """Return the files with a spec whose lanes share a compiled model."""
    encoder = replace(
        files.spec.encoder,
        hidden_size=1024,
        head_dim=1024 // files.spec.encoder.num_heads,
        intermediate_size=4096,
        num_layers=layers,
        windows=(None,) * layers,
    )
    return replace(files, spec=replace(files.spec, encoder=encoder))


def plan_of(files: ModelFiles, room: Memory | None = None, **options: Any) -> EnginePlan:
    plan = plan_engine(files, replace(CONFIG, **options), machine=fake_machine(files={}))
    return replace(plan, memory=room or Memory())


def needs(files: ModelFiles, **options: Any) -> MemoryNeeds:
    return memory_needs(files, ChosenPrecision(name="float32"), replace(CONFIG, **options))


def test_a_small_model_has_a_compiled_model_for_each_lane(files: ModelFiles) -> None:
    chosen = choose_profile(plan_of(files), files, CONFIG, None)
    assert chosen == Profile(
        max_batch_tokens=512, num_streams=2, shares_lanes=False, library="auto"
    )
    chosen = choose_profile(plan_of(files), files, replace(CONFIG, max_batch_tokens=77), None)
    assert chosen.max_batch_tokens == 77


def test_lanes_of_a_large_model_share_one_however_much_memory_there_is(files: ModelFiles) -> None:
    big = scaled(files)
    chosen = choose_profile(plan_of(big), big, CONFIG, None)
    assert chosen == Profile(max_batch_tokens=192, num_streams=1, shares_lanes=True, library="auto")
    assert choose_profile(plan_of(big), big, CONFIG, FOUND) == chosen, "two would be too much"


@pytest.mark.parametrize("less", [0, 1])
def test_lanes_share_one_where_two_have_no_room(less: int, files: ModelFiles) -> None:
    known = needs(files)
    data = Memory(Room(known.separate - less, "a test"))
    addresses = Memory(None, Room(known.separate + known.files - less, "a test"))
    for room in (data, addresses):
        assert shares_lanes(plan_of(files, room), known) is bool(less)


def test_a_measured_profile_is_taken_where_its_own_batches_have_room(files: ModelFiles) -> None:
    shared = replace(FOUND, max_batch_tokens=1 << 18, shares_lanes=True)
    options = {"max_batch_tokens": shared.max_batch_tokens}
    for less, is_taken in ((0, True), (1, False)):
        plan = plan_of(files, Memory(Room(needs(files, **options).shared - less, "a test")))
        chosen = choose_profile(plan, files, CONFIG, shared)
        assert (chosen == shared) is is_taken
        assert chosen.library == ("any" if is_taken else "auto")
        shorter = replace(CONFIG, max_batch_tokens=64)
        chosen = choose_profile(plan, files, shorter, shared)
        assert chosen == replace(shared, max_batch_tokens=64), "the option wins"


def test_what_a_plan_has_asked_for_is_of_its_precision_alone(files: ModelFiles) -> None:
    plan = plan_of(files)
    assert needs_of(plan, files, CONFIG) is plan.needs
    kept = replace(plan.precision, name="int8", excluded=("layers.0.up",))
    other = replace(plan, precision=kept)
    assert needs_of(other, files, CONFIG).precision == "int8 without layers.0.up"


def test_several_devices_share_the_threads(files: ModelFiles) -> None:
    config = replace(CONFIG, threads=4)
    for count, each in ((1, 4), (2, 2), (3, 1), (8, 1)):
        plan = replace(plan_of(files), devices=("cpu",) * count, needs=None)
        assert choose_profile(plan, files, config, None).num_streams == each
        assert needs_of(plan, files, config) == needs(files, threads=each)


def test_what_is_told_of_a_models_memory(files: ModelFiles) -> None:
    options = {"max_batch_tokens": 1 << 18}
    small, big = needs(files, **options), needs(scaled(files))
    assert gib(small.separate) != gib(small.shared)
    assert describe_memory(plan_of(files, **options), files, replace(CONFIG, **options)) == (
        f"needs about {gib(small.separate)} for {gib(small.weights)} of weights: yes, with a "
        f"compiled model for each lane; {gib(small.shared)} with one for both"
    )
    assert describe_memory(plan_of(scaled(files)), scaled(files), CONFIG) == (
        f"needs about {gib(big.shared)} for {gib(big.weights)} of weights: yes, both lanes share a "
        "compiled model"
    )
    plan = plan_of(scaled(files), Memory(Room(big.shared - 1, "a test")))
    amount, limit = gib(big.shared, 9), gib(big.shared - 1, 9)
    assert describe_memory(plan, scaled(files), CONFIG) == (
        f"needs about {amount} of memory for {gib(big.weights)} of weights: no, this process can "
        f"have {limit} (a test)"
    )


@pytest.mark.parametrize(
    ("layers", "prepare", "is_told"), [(24, True, True), (24, False, False), (1, True, False)]
)
def test_a_copy_in_float32_is_told_where_it_is_written(
    layers: int,
    prepare: bool,
    is_told: bool,
    narrow: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(float32_copy, "pays", lambda precision: True)
    big, config = scaled(narrow, layers), replace(CONFIG, prepare=prepare)
    plan = plan_of(big, prepare=prepare)
    assert needs_of(plan, big, config).is_widened
    told = describe_memory(plan, big, config)
    assert told.endswith("; 16-bit weights are copied to the cache as float32") is is_told


def test_nothing_is_widened_where_there_is_no_room_or_nothing_to_widen(
    narrow: ModelFiles, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float32_copy, "pays", lambda precision: True)
    wide = read_model_files(tiny_folder("bert"))
    assert not needs_of(replace(plan_of(wide), needs=None), wide, CONFIG).is_widened
    big = scaled(narrow)
    as_stored = memory_needs(big, ChosenPrecision(name="float32"), CONFIG)
    widened = memory_needs(big, ChosenPrecision(name="float32"), CONFIG, is_widened=True)
    assert as_stored.shared < widened.shared
    for num_bytes, is_widened in ((widened.shared, True), (widened.shared - 1, False)):
        plan = replace(plan_of(big), memory=Memory(Room(num_bytes, "a test")), needs=None)
        found = needs_of(plan, big, CONFIG)
        assert found == (widened if is_widened else as_stored)
        key = profile_key(plan, big, CONFIG, fake_machine())
        assert key.shape["stores_16_bits"] is not is_widened


def test_what_a_profile_is_valid_for(files: ModelFiles) -> None:
    plan, machine = plan_of(files), fake_machine()
    key = profile_key(plan, files, CONFIG, machine)
    assert (key.engine, key.precision, key.shape["stores_16_bits"]) == (
        "openvino",
        "float32",
        False,
    )
    assert key.machine == {"cpu": list(machine.cpu_identity()), "threads": 2}
    assert key.versions == {"embedlib": __version__, "openvino": machine.version("openvino")}
    many = profile_key(replace(plan, devices=("cpu",) * 3), files, CONFIG, machine)
    assert many.machine["threads"] == 1, "as each of their engines has at least one"
    kept = ChosenPrecision(name="int8", excluded=("layers.1.up", "layers.0.up"))
    other = profile_key(replace(plan, precision=kept), files, CONFIG, machine)
    assert (other.precision, other.shape["excluded"]) == ("int8", ["layers.0.up", "layers.1.up"])

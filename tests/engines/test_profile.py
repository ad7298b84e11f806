"""Profiles: found again on the machine that measured them, and nowhere else."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines import select
from embedlib.engines.openvino.kind import KIND
from embedlib.engines.profile import Profile, ProfileKey, read_profile, write_profile
from embedlib.engines.select import plan_engine
from embedlib.models.encoder_parts import (
    Convolutions,
    Experts,
    LinearBias,
    RelativePositions,
    WideHeads,
)
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.session.loading import load_model
from tests.comparing import relative_errors
from tests.machines import fake_machine

KEY = ProfileKey(
    engine="openvino",
    precision="float32",
    shape={"num_layers": 2},
    machine={"cpu": ["x86_64", "family 25"], "threads": 2},
    versions={"openvino": "2026.4"},
)
PROFILE = Profile(max_batch_tokens=300, num_streams=1, shares_lanes=True, library="onednn")


@pytest.fixture
def config(new_cache: Path) -> Config:
    return Config(engine_cache_dir=new_cache, threads=2)


@pytest.fixture
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


def test_a_profile_is_found_again(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    assert read_profile(KEY, config) is None
    path = write_profile(KEY, PROFILE, {"rows": ["no room for /\udcff"]}, config)
    assert path.parent == config.engine_cache_path / "profiles"
    found = read_profile(KEY, config)
    assert found == replace(PROFILE, is_tuned=True)
    assert str(found) == "tuned: 300 tokens, 1 stream, one model for both lanes, onednn"
    assert read_profile(replace(KEY, machine={"cpu": [], "threads": 2}), config) is None
    assert read_profile(replace(KEY, precision="int8"), config) is None
    assert [path.name for path in path.parent.iterdir()] == [path.name]
    assert not caplog.records


def changed(content: dict[str, Any]) -> str:
    """The content as a file, with the digest of the change."""
    from embedlib.engines import profile

    del content["digest"]
    return json.dumps({**content, "digest": profile._digest(content)})


def with_settings(content: dict[str, Any], **settings: object) -> str:
    return changed({**content, "settings": {**content["settings"], **settings}})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:100], "is not valid JSON"),
        (lambda text: "[]", "profile_version = None"),
        (lambda text: text.replace("300", "301"), "it is damaged"),
        (lambda text: changed({**json.loads(text), "profile_version": 9}), "profile_version = 9"),
        (lambda text: with_settings(json.loads(text), num_streams=0), "settings = "),
        (lambda text: with_settings(json.loads(text), library="mkl"), "settings = "),
        (lambda text: with_settings(json.loads(text), more=1), "more"),
        (lambda text: changed({**json.loads(text), "valid_for": {}}), "it is of another engine"),
    ],
)
def test_a_file_that_is_no_profile_is_ignored_with_one_line(
    damage: Callable[[str], str], reason: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_profile(KEY, PROFILE, {}, config)
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert read_profile(KEY, config) is None
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert record.levelno == logging.WARNING

    assert re.search(reason, record.getMessage()), record.getMessage()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"versions": {"openvino": "2027.0"}}, "version"),
        ({"machine": {"cpu": ["x86_64", "family 6"], "threads": 2}}, "machine"),
        ({"shape": {"num_layers": 3}}, "shape"),
    ],
)
def test_a_profile_of_another_machine_or_version_is_ignored(
    changes: dict[str, Any], what: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    other = replace(KEY, **changes)
    path = write_profile(KEY, PROFILE, {}, config)
    path.replace(other.path(config))  # as if it had been copied
    assert read_profile(other, config) is None
    assert f"it is of another {what};" in caplog.text


def key_of(files: ModelFiles, config: Config) -> ProfileKey:
    machine = fake_machine()
    plan = plan_engine(files, config, machine=machine)
    assert KIND.profile_key is not None
    return KIND.profile_key(plan, files, config, machine)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_kv_heads": 1},
        {"intermediate_size": 8},
        {"is_gated": True},
        {"is_causal": True},
        {"windows": (4,) * 2},
        {"experts": Experts(count=4, num_chosen=2, layers=(1,))},
        {"convolutions": Convolutions(layers=(0,), width=3, has_bias=False)},
        {"wide_heads": WideHeads(head_dim=16, num_kv_heads=1)},
        {"layer_input_size": 8},
        {"position_bias": LinearBias()},
        {"relative_positions": RelativePositions(num_buckets=8, max_distance=16)},
        {"attention_cap": 50.0},
    ],
)
def test_layers_that_compute_otherwise_have_a_profile_of_their_own(
    changes: dict[str, Any], files: ModelFiles, config: Config
) -> None:
    config = replace(config, precision="float32")
    plan = plan_engine(files, config, machine=fake_machine())
    encoder = replace(files.spec.encoder, **changes)
    other = replace(files, spec=replace(files.spec, encoder=encoder))
    assert KIND.profile_key is not None
    mine, others = (
        KIND.profile_key(plan, each, config, fake_machine()).path(config) for each in (files, other)
    )
    assert mine != others


def test_a_load_uses_the_profile_and_options_win_over_it(files: ModelFiles, config: Config) -> None:
    config = replace(config, precision="float32")
    write_profile(key_of(files, config), PROFILE, {}, config)

    def load(**options: Any) -> tuple[tuple[int, int], str]:
        asked = replace(config, **options)
        model = load_model(files.folder, asked, machine=fake_machine())
        limits = model.engine.limits
        model.engine.close()
        return (limits.max_batch_tokens, limits.num_parallel_batches), model.profile

    assert load() == ((300, 1), "tuned: 300 tokens, 1 stream, one model for both lanes, onednn")
    assert load(max_batch_tokens=77)[0] == (77, 1)
    assert load(max_seq_tokens=8)[0] == (300, 1)
    assert load(device="cpu,cpu", threads=4)[0] == (300, 2), "each device has two"
    for limits, told in (load(threads=1), load(device="cpu,cpu")):  # of one thread
        assert limits[0] == 512, "another number of threads is another profile"
        assert told.startswith("default: ")


def test_a_profile_that_needs_too_much_memory_is_not_used(
    files: ModelFiles,
    config: Config,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert KIND.choose_profile is not None
    greedy = replace(PROFILE, max_batch_tokens=1 << 30, shares_lanes=False, is_tuned=True)
    kib = 1 << 20
    machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {kib} kB\n"})
    plan = plan_engine(files, config, machine=machine)
    long = replace(files, spec=replace(files.spec, max_seq_tokens=1 << 22))
    monkeypatch.setattr(select, "read_profile", lambda *_: greedy)
    chosen = select._with_profile(plan, long, config, machine).profile
    assert chosen is not None
    assert not chosen.is_tuned
    assert chosen.max_batch_tokens == 512
    assert "is not used" in caplog.text
    modest = replace(greedy, max_batch_tokens=600)
    assert KIND.choose_profile(plan, files, config, modest) == modest


@pytest.mark.parametrize(
    ("library", "shares_lanes"), [("onednn", False), ("mlas", False), ("any", True)]
)
def test_a_profile_changes_no_vector(
    library: Any, shares_lanes: bool, files: ModelFiles, config: Config
) -> None:
    config = replace(config, precision="float32")
    texts = ["a b c", "d", "e f g h a b c d", "b a"] * 20
    with Embedder(files.folder, config=config) as embedder:
        expected = embedder.encode(texts)
        assert embedder.stats().profile.startswith("default: ")
    from embedlib.engines.machine import Machine

    plan = plan_engine(files, config)
    assert KIND.profile_key is not None
    key = KIND.profile_key(plan, files, config, Machine())
    profile = Profile(
        max_batch_tokens=40, num_streams=1, shares_lanes=shares_lanes, library=library
    )
    write_profile(key, profile, {}, config)
    with Embedder(files.folder, config=config) as embedder:
        assert embedder.stats().profile == str(replace(profile, is_tuned=True))
        assert relative_errors(embedder.encode(texts), expected).max() < 2e-5

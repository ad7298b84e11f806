"""What is known of a hub model before its weights are downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from embedlib import Embedder
from embedlib.cli import main
from embedlib.config import Config
from embedlib.engines.machine import Machine
from embedlib.errors import (
    EngineUnavailableError,
    ModelNotFoundError,
    ModelUnsupportedError,
    ModelWeightsError,
)
from embedlib.models import hub_outline
from embedlib.models.hub import resolve
from embedlib.models.opening import OpenedModel
from embedlib.models.weights.load import find_tensors
from embedlib.models.weights.safetensors_files import list_tensors
from embedlib.serve.models.catalog import load_by_kind
from embedlib.session.loading import load_model
from embedlib.session.text_measure import TextMeasure
from embedlib.testing.models.write import write_tiny_model
from tests.machines import fake_machine
from tests.models.converting.pickles import as_pickles
from tests.models.fake_hub import COMMIT, FakeHub, serve_hub, use_hub
from tests.tiny_models.static import write_static_model

REPO = "owner/model"
WEIGHTS = "model.safetensors"
SECRET = "hf_verysecret"
LITTLE = {"/proc/meminfo": "MemTotal:  2048 kB\nMemAvailable:  1024 kB\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "published", "bert")


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve_hub(FakeHub({REPO: folder})) as hub:
        use_hub(hub, monkeypatch)
        # Every model here is a small one.
        monkeypatch.setattr("embedlib.session.loading.LARGE_BYTES", 0)
        yield hub


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        cache_folder=str(tmp_path / "hub"), engine_cache_dir=tmp_path, threads=1, prepare=False
    )


def is_downloaded(config: Config) -> bool:
    return any(Path(str(config.cache_folder)).rglob(WEIGHTS))


def test_a_model_loads_from_a_hub(hub: FakeHub, folder: Path, config: Config) -> None:
    with Embedder(REPO, config=config) as found, Embedder(folder, config=config) as expected:
        np.testing.assert_array_equal(found.encode(["a text"]), expected.encode(["a text"]))
    assert is_downloaded(config)


def test_headers_are_those_of_the_weights(hub: FakeHub, folder: Path, config: Config) -> None:
    with OpenedModel.outlined(REPO, config, 1) as found:
        assert found is not None
        assert (found.name, found.revision) == (REPO, COMMIT)
        stub = found.folder / WEIGHTS
        assert stub.stat().st_size == (folder / WEIGHTS).stat().st_size
        tensors, expected = list_tensors(stub, found.folder), list_tensors(folder / WEIGHTS, folder)
        assert [(t.dtype, t.shape, t.start) for t in tensors.values()] == [
            (t.dtype, t.shape, t.start) for t in expected.values()
        ]
    assert not found.folder.exists()
    assert not is_downloaded(config)


def test_no_more_than_the_header_is_read_where_ranges_are_not_known(
    hub: FakeHub, folder: Path, config: Config
) -> None:
    hub.ranges = "ignored"
    with OpenedModel.outlined(REPO, config, 1) as found:
        assert found is not None
        length = int.from_bytes((folder / WEIGHTS).read_bytes()[:8], "little")
        assert not (found.folder / WEIGHTS).read_bytes()[8 + length :].strip(b"\0")


def test_a_model_without_room_is_refused_before_its_download(hub: FakeHub, config: Config) -> None:
    machine = fake_machine(files=LITTLE)
    told = rf"^engine openvino: {REPO} needs about .* of memory in float32, and this process can"
    with pytest.raises(EngineUnavailableError, match=told) as raised:
        load_model(REPO, config, machine=machine)
    assert "outline" not in str(raised.value)
    assert not is_downloaded(config)


def test_a_model_that_is_not_supported_is_refused_before_its_download(
    hub: FakeHub, folder: Path, config: Config
) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"hidden_act": "mish"}))
    with pytest.raises(ModelUnsupportedError, match="mish"):
        Embedder(REPO, config=config)
    assert not is_downloaded(config)


def test_a_name_that_the_hub_lacks(hub: FakeHub, config: Config) -> None:
    with pytest.raises(ModelNotFoundError, match=r"'owner/other' \(does not exist"):
        Embedder("owner/other", config=config)


def test_what_is_cached_is_not_asked_for(
    hub: FakeHub, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    OpenedModel.find(REPO, config)
    monkeypatch.setattr(hub_outline, "_read_header", lambda *_: pytest.fail("asked"))
    with OpenedModel.outlined(REPO, config, 1) as found:
        assert found is None


def test_offline_opens_no_connection(
    hub: FakeHub, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the sizes of weights either, where the settings are in the cache."""
    resolve(REPO, config, with_weights=False)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("connected"))
    with pytest.raises((ModelWeightsError, ModelNotFoundError)):  # by huggingface_hub's version
        Embedder(REPO, config=replace(config, local_files_only=True))


def test_small_weights_are_downloaded_at_once(hub: FakeHub, folder: Path, config: Config) -> None:
    size = (folder / WEIGHTS).stat().st_size
    with OpenedModel.outlined(REPO, config, size + 1) as found:
        assert found is None
    assert not hub.tokens, "no weights were asked for"


def test_the_token_is_given_to_the_hub_alone(hub: FakeHub, folder: Path, config: Config) -> None:
    with serve_hub(FakeHub({REPO: folder})) as stores:
        hub.stores = stores.url.replace("127.0.0.1", "localhost")
        with OpenedModel.outlined(REPO, replace(config, token=SECRET), 1) as found:
            assert found is not None
    assert hub.tokens == [f"Bearer {SECRET}"]
    assert stores.tokens == [None]


@pytest.mark.parametrize("how", ["refused", "cut", "no header", "outside", "no disk"])
def test_without_headers_the_load_tells_what_is_wrong(
    hub: FakeHub,
    folder: Path,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    outside = tmp_path / "written.safetensors"
    if how == "refused":
        hub.sends_weights = False
    elif how == "cut":
        hub.most_bytes = 99
    elif how == "no header":
        content = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(b"\xff" * 8 + content[8:])
    elif how == "outside":
        hub.listed = {str(outside): 99, "../other.safetensors": 99}
    else:
        monkeypatch.setattr(hub_outline, "tempfile", SimpleNamespace(TemporaryDirectory=no_disk))
    with OpenedModel.outlined(REPO, config, 1) as found:
        assert found is None
    with OpenedModel.described(REPO, config) as opened:
        assert opened.read_files(with_head=False).spec.embedding_dim == 32
        assert not opened.has_weights
    assert not outside.exists()
    assert not is_downloaded(config)


def no_disk(**_: object) -> None:
    raise FileNotFoundError("No usable temporary directory found")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("encoder.layer.0.output.dense.bias"), "bias .* is missing"),
        (lambda tensors: tensors.update(more=np.zeros(3, np.float32)), "more .* is left over"),
    ],
)
def test_weights_of_another_model_are_refused_before_their_download(
    hub: FakeHub,
    folder: Path,
    config: Config,
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ModelWeightsError, match=message):
        Embedder(REPO, config=config)
    assert not is_downloaded(config)


def test_what_is_missing_of_a_download_is_outlined(
    hub: FakeHub, folder: Path, config: Config
) -> None:
    """Two shards, of which one is there: commands that tell of the model load no more."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    table = {name: file for file, part in parts.items() for name in part}
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": table}))
    here = OpenedModel.find(REPO, config).folder
    (here / "b.safetensors").unlink()
    with OpenedModel.described(REPO, config) as opened:
        find_tensors(opened.read_files(with_head=False))
    assert not (here / "b.safetensors").exists()


def test_a_cached_model_stays_one_that_loads_offline(hub: FakeHub, config: Config) -> None:
    """Also where its author has pushed another commit since."""
    OpenedModel.find(REPO, config)
    hub.commit = COMMIT[::-1]
    with OpenedModel.described(REPO, config) as opened:
        assert opened.has_weights
    assert OpenedModel.find(REPO, replace(config, local_files_only=True)).revision == hub.commit


def test_a_table_is_downloaded_where_its_headers_cannot_be_had(
    hub: FakeHub, config: Config, tmp_path: Path
) -> None:
    hub.folders[REPO] = write_static_model(tmp_path / "static")
    hub.ranges = "refused"
    with OpenedModel.described(REPO, config) as opened:
        assert opened.read_files(with_head=False).spec.encoder.is_table
        assert opened.has_weights


def test_a_repository_of_pickles_is_refused(hub: FakeHub, folder: Path, config: Config) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    opened = OpenedModel.described(REPO, config)
    with pytest.raises(ModelWeightsError, match=f"run embedlib convert {REPO} once"), opened:
        pass


def test_a_repository_of_pickles_loads_by_its_name_once_it_is_converted(
    hub: FakeHub, folder: Path, config: Config
) -> None:
    with Embedder(folder) as embedder:
        expected = embedder.encode("hello")
    as_pickles(folder, num_shards=2)
    (folder / "onnx").mkdir()
    for name in ("onnx/pytorch_model.bin", "training_args.bin", "sparse_linear.pt"):
        (folder / name).write_bytes(b"?")
    (folder / "sparse_linear.safetensors").write_bytes(b"?")
    options = ["--cache-folder", str(config.cache_folder)]
    told = run(None, "convert", REPO, *options)
    assert told.endswith(f"{REPO} loads by its name now\n")
    assert told.startswith("model-00001-of-00002.safetensors: ")
    offline = replace(config, local_files_only=True)
    with Embedder(REPO, config=offline) as embedder:
        assert (embedder.encode("hello") == expected).all()
    snapshot = OpenedModel.find(REPO, offline).folder
    cached = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.bin")}
    assert cached == {"pytorch_model-1.bin", "pytorch_model-2.bin"}
    done = CliRunner().invoke(main, ["convert", REPO, *options, "--local-files-only"])
    assert "nothing to convert, safetensors for all of them are there" in done.stderr


def run(machine: Machine | None, *arguments: str) -> str:
    done = CliRunner().invoke(main, arguments, obj=machine)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("command", ["doctor", "inspect"])
def test_commands_that_tell_of_a_model_download_no_weights(
    hub: FakeHub, folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", config.cache_folder)
    machine = fake_machine() if command == "doctor" else None
    told, local = run(machine, command, REPO), run(machine, command, str(folder))
    assert not is_downloaded(config)
    if command == "doctor":
        rows = [line for line in told.splitlines() if line.startswith("openvino ")]
        assert len(rows) > 2
        assert rows == [line for line in local.splitlines() if line.startswith("openvino ")]
    else:
        assert "folder         not downloaded" in told
        assert json.loads(run(None, command, REPO, "--json"))["folder"] is None
        assert told.splitlines()[3:] == local.splitlines()[2:]


def test_texts_are_measured_without_weights(hub: FakeHub, folder: Path, config: Config) -> None:
    rooms = [TextMeasure(name, config).count_room("document") for name in (REPO, str(folder))]
    assert rooms[0] == rooms[1]
    assert not is_downloaded(config)


def test_a_server_knows_the_kind_of_a_model_before_its_download(
    hub: FakeHub, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    def load(*_: object, **__: object) -> object:
        assert not is_downloaded(config)
        return "the model"

    monkeypatch.setattr("embedlib.serve.models.catalog.Embedder", load)
    loaded: object = load_by_kind(REPO, config, told.append)
    assert (loaded, told) == ("the model", [("embed",)])


def test_a_shorter_limit_of_length_counts(
    hub: FakeHub, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        "embedlib.session.loading.check_room",
        lambda files, *_: seen.append(files.spec.max_seq_tokens),
    )
    with Embedder(REPO, config=replace(config, max_seq_tokens=17)):
        pass
    assert seen == [17]

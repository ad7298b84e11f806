from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from embedlib.config import Config
from embedlib.models.converting.hub_pickles import resolve_pickled
from tests.models.fake_hub import FakeHub, serve_hub, use_hub

OWNER, NAME = "sentence-transformers", "tiny"
SETTINGS = {"config.json", "tokenizer.json", "2_Dense/config.json"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve_hub(FakeHub({f"{OWNER}/{NAME}": folder})) as hub:
        use_hub(hub, monkeypatch)
        yield hub


def publish(folder: Path, *weights: str) -> None:
    for name in (*SETTINGS, *weights):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


def files_of(snapshot: Path) -> set[str]:
    return {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("weights", "downloaded"),
    [
        ({"pytorch_model.bin", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"}, 2),
        ({"pytorch_model-00001-of-00001.bin", "colbert_linear.pt", "optimizer.pt"}, 2),
        ({"model.safetensors", "pytorch_model.bin", "sparse_linear.pt"}, 2),
        ({"sparse_linear.safetensors", "sparse_linear.pt", "pytorch_model.bin"}, 2),
        ({"model.safetensors", "pytorch_model.bin"}, 0),
        ({"onnx/pytorch_model.bin", "training_args.bin"}, 0),
    ],
)
def test_pickles_are_downloaded_where_safetensors_are_missing(
    folder: Path, tmp_path: Path, weights: set[str], downloaded: int
) -> None:
    publish(folder, *weights)
    found = resolve_pickled(NAME, Config(cache_folder=str(tmp_path / "cache")))
    assert found.name == NAME
    got = files_of(found.path) - SETTINGS
    assert len(got) == downloaded
    assert got < weights or got == weights
    assert not got & {"2_Dense/pytorch_model.bin", "optimizer.pt"}
    assert {"sparse_linear.safetensors", "sparse_linear.pt"} - got


def test_nothing_is_asked_offline(
    hub: FakeHub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, "pytorch_model.bin")
    config = Config(cache_folder=str(tmp_path / "cache"), token="hf_verysecret")
    tokens: list[object] = []
    asked = HfApi.model_info

    def model_info(self: HfApi, *arguments: object, **options: object) -> object:
        tokens.append(self.token)
        return asked(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(HfApi, "model_info", model_info)
    online = resolve_pickled(NAME, config)
    assert set(tokens) == {"hf_verysecret"}
    tokens.clear()
    offline = resolve_pickled(NAME, Config(cache_folder=config.cache_folder, local_files_only=True))
    assert not tokens
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_pickled(NAME, config).path == offline.path == online.path
    assert files_of(offline.path) == {*SETTINGS, "pytorch_model.bin"}

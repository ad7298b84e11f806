from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embedlib.config import Config
from embedlib.engines import make as make_module
from embedlib.engines import precision as precision_module
from embedlib.engines.gpus import Gpu, check_room, list_gpus, needed_bytes
from embedlib.engines.make import EnginePlan, make_engine
from embedlib.engines.many import ManyEngines
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.precision import ChosenPrecision, choose_precision
from embedlib.engines.registry import available_engines
from embedlib.engines.select import choose_engine, plan_engine
from embedlib.errors import ConfigError, EngineUnavailableError, EngineUnsupportedError
from embedlib.models.compiled import int8
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import open_engine_folder
from embedlib.models.compiled.fidelity_report import FidelityReport, template_facts
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.spec import Head, PairTemplate
from embedlib.models.weights.load import Weights

H200 = "GPU-aa11, NVIDIA H200, 143771, 143000, 580.1, 9.0"
A100 = "GPU-bb22, NVIDIA A100, 40960, 40000, 580.1, 8.0"
T4 = "GPU-cc33, Tesla T4, 15360, 15000, 580.1, 7.5"
GIB = 1 << 30


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a fake nvidia-smi that lists these GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*rows: str, status: int = 0) -> None:
        tool = tmp_path / "nvidia-smi"
        lines = "".join(f"echo '{row}'\n" for row in rows)
        tool.write_text(f"#!/bin/sh\n{lines}exit {status}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a version of tensorrt_llm look installed, without loading it."""

    def install(version: str) -> None:
        find_spec, find_version = importlib.util.find_spec, importlib.metadata.version
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            # torch and triton are hidden, since they would make the engine cuda available.
            lambda name: (
                {"tensorrt_llm": object(), "torch": None, "triton": None}[name]
                if name in ("tensorrt_llm", "torch", "triton")
                else find_spec(name)
            ),
        )
        monkeypatch.setattr(
            importlib.metadata,
            "version",
            lambda name: version if name == "tensorrt_llm" else find_version(name),
        )

    return install


@pytest.fixture
def has_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes only these packages look installed, without loading them."""

    def install(*packages: str) -> None:
        find_spec, find_version = importlib.util.find_spec, importlib.metadata.version
        hidden = {"torch", "triton", "tensorrt_llm"} - set(packages)
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name: (
                object() if name in packages else None if name in hidden else find_spec(name)
            ),
        )
        monkeypatch.setattr(
            importlib.metadata,
            "version",
            lambda name: "2.13.0" if name in packages else find_version(name),
        )

    return install


@pytest.fixture
def tiny(tiny_folder: Callable[[str], Path]) -> Callable[[str], ModelFiles]:
    return lambda variant: read_model_files(tiny_folder(variant))


def reason(name: str, config: Config | None = None) -> str:
    (choice,) = [choice for choice in available_engines(config) if choice.name == name]
    assert not choice.is_available
    return choice.reason


def test_every_engine_has_a_reason_in_one_line() -> None:
    engines = available_engines()
    assert [choice.name for choice in engines] == ["tensorrt_llm", "cuda", "openvino"]
    for choice in engines:
        assert choice.reason
        assert "\n" not in choice.reason


@pytest.mark.parametrize("engine", ["auto", "openvino"])
@pytest.mark.parametrize("device", [None, "cpu", "all", ("cpu", "cpu")])
def test_what_runs_on_a_cpu(engine: Any, device: Any) -> None:
    choice = choose_engine(Config(engine=engine, device=device))
    assert choice.name == "openvino"
    assert choice.is_available
    assert choice.version is not None
    assert choice.devices == (("cpu", "cpu") if isinstance(device, tuple) else ("cpu",))


@pytest.mark.parametrize("engine", ["cuda", "tensorrt_llm"])
def test_an_engine_that_is_not_there_says_why(engine: str) -> None:
    with pytest.raises(EngineUnavailableError, match=f"^engine = '{engine}' cannot be used here: "):
        choose_engine(Config(engine=engine))  # type: ignore[arg-type]


def test_another_device_is_refused_by_its_name() -> None:
    told = (
        r"^engine = 'auto', device = 'cuda:1' cannot be used here: tensorrt_llm: .*not on cuda:1$"
    )
    with pytest.raises(EngineUnavailableError, match=told):
        choose_engine(Config(device="cuda:1"))


def test_without_openvino_auto_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EngineUnavailableError, match="pip install openvino"):
        choose_engine(Config())


def test_a_gpu_and_tensorrt_llm(
    gpus: Callable[..., None], installed: Callable[[str], None]
) -> None:
    gpus(H200)
    installed("1.3.0rc26")
    choice = choose_engine(Config())
    assert (choice.name, choice.version) == ("tensorrt_llm", "1.3.0rc26")
    assert choice.devices == ("cuda:0",)
    assert choice.reason == "runs on cuda:0, NVIDIA H200, in FP8 or bfloat16"
    assert choose_engine(Config(device="cpu")).name == "openvino"
    for device in ("cuda", "cuda:0", "all"):
        assert choose_engine(Config(device=device)).name == "tensorrt_llm"


def test_without_tensorrt_llm(gpus: Callable[..., None]) -> None:
    gpus(H200)
    assert reason("tensorrt_llm").startswith("the package tensorrt-llm is missing; pip install ")


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc15", "0.21.0"])
def test_a_version_that_is_too_old(
    version: str, gpus: Callable[..., None], installed: Callable[[str], None]
) -> None:
    gpus(H200)
    installed(version)
    told = reason("tensorrt_llm")
    assert told.startswith(f"tensorrt-llm {version} is too old: it has no LLM.encode")
    assert told.endswith("install 1.3.0rc22 to 1.3.0rc29")


@pytest.mark.parametrize("version", ["1.3.0rc22", "1.3.0rc22.post1", "1.3.0", "1.4.0rc1", "dev"])
def test_versions_that_are_probed_when_loaded(
    version: str, gpus: Callable[..., None], installed: Callable[[str], None]
) -> None:
    gpus(H200)
    installed(version)
    assert choose_engine(Config()).name == "tensorrt_llm"


def test_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gpus: Callable[..., None],
    installed: Callable[[str], None],
) -> None:
    installed("1.3.0rc26")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert reason("tensorrt_llm") == "no NVIDIA GPU was found (there is no nvidia-smi)"
    assert choose_engine(Config()).name == "openvino"
    gpus(status=9)
    assert "nvidia-smi failed (CalledProcessError)" in reason("tensorrt_llm")
    gpus(H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES leave none" in reason("tensorrt_llm")


def test_an_old_gpu(gpus: Callable[..., None], installed: Callable[[str], None]) -> None:
    gpus(T4, H200)
    installed("1.3.0rc26")
    told = "Tesla T4 is too old: compute capability 7.5, at least 8.0 is needed"
    assert reason("tensorrt_llm") == told


def test_other_gpus_of_the_machine(
    gpus: Callable[..., None], installed: Callable[[str], None]
) -> None:
    gpus(H200, A100)
    installed("1.3.0rc26")
    config = Config(device="cuda:1")
    assert reason("tensorrt_llm", config).endswith(
        "set CUDA_VISIBLE_DEVICES=1 and leave device out"
    )
    assert "there is no cuda:2; this process sees 2 GPUs" in reason(
        "tensorrt_llm", Config(device="cuda:2")
    )
    assert "one GPU of a process" in reason("tensorrt_llm", Config(device="cuda:0,cuda:1"))
    assert reason("openvino", config) == "it computes on the CPU, not on cuda:1"
    told = "runs on cuda:0, NVIDIA H200, one of 2 GPUs here, in FP8 or bfloat16"
    assert choose_engine(Config()).reason == told


def test_all_of_several_gpus(
    gpus: Callable[..., None],
    installed: Callable[[str], None],
    tiny: Callable[[str], ModelFiles],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:

    gpus(H200, A100)
    installed("1.3.0rc26")
    monkeypatch.setattr(make_module, "compiled_weights", lambda *args: None)
    monkeypatch.setattr(make_module, "_make_tensorrt_llm", lambda *args: "engine")
    for device in (None, "all"):
        caplog.clear()
        config = Config(device=device)
        made: Any = make_engine(plan_engine(tiny("llama"), config), tiny("llama"), config)
        assert made == "engine"
        assert ("start a process for each of the others" in caplog.text) == (device == "all")


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, ["NVIDIA H200", "NVIDIA A100", "Tesla T4"]),
        ("", []),
        ("2,0", ["Tesla T4", "NVIDIA H200"]),
        ("GPU-bb", ["NVIDIA A100"]),
        ("1,7,0", ["NVIDIA A100"]),
        ("MIG-1", []),
    ],
)
def test_the_gpus_a_process_sees(
    setting: str | None,
    names: list[str],
    gpus: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(H200, A100, T4)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [gpu.name for gpu in list_gpus()] == names


def test_what_a_gpu_tells(gpus: Callable[..., None]) -> None:
    gpus(H200, "GPU-dd, NVIDIA GB10, [N/A], [N/A], 580.1, 12.1")
    first, second = list_gpus()
    assert first == Gpu(
        name="NVIDIA H200",
        total_bytes=143771 << 20,
        free_bytes=143000 << 20,
        driver="580.1",
        compute_capability=(9, 0),
    )
    assert second.total_bytes is None
    check_room(second, 1 << 50, 0.9)  # the memory is unknown, so nothing is rejected


def test_how_much_memory_a_model_needs(tiny: Callable[[str], ModelFiles]) -> None:
    spec = tiny("mistral").spec
    bert = replace(
        spec.encoder,
        vocab_size=32_000,
        hidden_size=4096,
        num_layers=32,
        windows=(None,) * 32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
    )
    spec = replace(spec, encoder=bert)  # 7.1 billion parameters
    half, fp8 = (needed_bytes(spec, name, (), 16384) / GIB for name in ("bf16", "fp8"))
    assert 15 < half < 19
    assert 8.5 < fp8 < 12
    excluded = [f"layers.{index}.down" for index in range(32)]
    assert needed_bytes(spec, "fp8", excluded, 16384) / GIB == pytest.approx(fp8 + 1.75)
    # Pooled rows need all layers in bfloat16, too; "down" is in bfloat16 only.
    both = needed_bytes(spec, "fp8", [*excluded, "pooled_rows"], 16384) / GIB
    assert both == pytest.approx(fp8 + 1.75 + 9.5)
    assert needed_bytes(spec, "bf16", ["pooled_rows"], 16384) / GIB == half


def test_a_gpu_that_is_too_small(
    gpus: Callable[..., None],
    installed: Callable[[str], None],
    tiny: Callable[[str], ModelFiles],
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpus("GPU-1, NVIDIA L4, 2048, 1900, 580.1, 8.9")
    installed("1.3.0rc26")
    told = (
        r"^cuda:0: the model needs about 2\.0 GiB; NVIDIA L4 has 2\.0 GiB, 1\.9 GiB free, of which "
        r"gpu_memory_fraction = 0\.9 allows 1\.8 GiB$"
    )
    with pytest.raises(EngineUnavailableError, match=told):
        plan_engine(tiny("llama"), Config(engine="tensorrt_llm"))
    with caplog.at_level(logging.INFO):
        assert plan_engine(tiny("llama"), Config()).engine == "openvino"
    assert "engine tensorrt_llm is not used: cuda:0: the model needs about" in caplog.text


def test_a_gpu_that_others_use(
    gpus: Callable[..., None], installed: Callable[[str], None], tiny: Callable[[str], ModelFiles]
) -> None:
    gpus("GPU-1, NVIDIA H200, 143771, 1000, 580.1, 9.0")
    installed("1.3.0rc26")
    with pytest.raises(EngineUnavailableError, match=r"140\.4 GiB, 1\.0 GiB free"):
        plan_engine(tiny("llama"), Config(engine="tensorrt_llm"))


def test_fp8_on_a_gpu_without_it(
    gpus: Callable[..., None], installed: Callable[[str], None], tiny: Callable[[str], ModelFiles]
) -> None:
    gpus(A100)
    installed("1.3.0rc26")
    told = r"^cuda:0: NVIDIA A100 has no FP8 \(compute capability 8\.0, FP8 needs 8\.9\)"
    with pytest.raises(EngineUnavailableError, match=told):
        plan_engine(tiny("llama"), Config(precision="fp8"))
    assert plan_engine(tiny("llama"), Config(precision="bf16")).precision.name == "bf16"


def test_a_model_that_an_engine_cannot_run(
    gpus: Callable[..., None], installed: Callable[[str], None], tiny: Callable[[str], ModelFiles]
) -> None:
    gpus(H200)
    installed("1.3.0rc26")
    assert plan_engine(tiny("gemma2"), Config()).engine == "openvino"
    with pytest.raises(EngineUnsupportedError, match="attention_cap"):
        plan_engine(tiny("gemma2"), Config(engine="tensorrt_llm"))
    assert plan_engine(tiny("llama"), Config()).engine == "tensorrt_llm"


@pytest.mark.parametrize(("packages", "missing"), [((), "torch"), (("torch",), "triton")])
def test_the_cuda_engine_needs_two_packages(
    has_torch: Callable[..., None], packages: tuple[str, ...], missing: str
) -> None:
    has_torch(*packages)
    assert reason("cuda") == f"the package {missing} is missing; pip install 'embedlib[cuda]'"


def test_a_gpu_and_torch(gpus: Callable[..., None], has_torch: Callable[..., None]) -> None:
    has_torch("torch", "triton")
    assert "no NVIDIA GPU was found" in reason("cuda")
    gpus(H200, A100)
    choice = choose_engine(Config())
    assert (choice.name, choice.version, choice.devices) == ("cuda", "2.13.0", ("cuda:0",))
    assert choice.hardware == "NVIDIA H200"
    choice = choose_engine(Config(device="all"))
    assert choice.devices == ("cuda:0", "cuda:1")
    assert choice.hardware == "NVIDIA A100 and NVIDIA H200"
    choice = choose_engine(Config(device="cuda:1,cuda:1"))
    assert (choice.devices, choice.hardware) == (("cuda:1", "cuda:1"), "NVIDIA A100")
    assert "there is no cuda:2; this process sees 2 GPUs" in reason("cuda", Config(device="cuda:2"))
    assert "not on cpu" in reason("cuda", Config(device="cpu"))
    gpus(T4)
    assert "Tesla T4 is too old: compute capability 7.5, at least 8.0" in reason("cuda")


def test_the_cuda_engine_gets_what_was_planned(
    gpus: Callable[..., None],
    has_torch: Callable[..., None],
    tiny: Callable[[str], ModelFiles],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="the engine's module needs torch")
    from embedlib.engines.cuda import engine, engine_directory

    made: list[dict[str, object]] = []

    def make(spec: object, weights: object, **options: object) -> object:
        made.append({"weights": weights, **options})
        return engine

    monkeypatch.setattr(engine, "CudaEngine", make)
    monkeypatch.setattr(engine_directory, "open_weights", lambda files, folder: folder)
    has_torch("torch", "triton")
    gpus(A100, H200)
    config = Config(device="cuda:1", engine_cache_dir=tmp_path, max_batch_tokens=4096)
    plan = plan_engine(tiny("llama"), config)
    assert (plan.engine, plan.precision.name) == ("cuda", "bf16")
    given: Any = make_engine(plan, tiny("llama"), config)
    assert given is engine
    (options,) = made
    assert Path(str(options.pop("weights"))).parent == tmp_path / "compiled"
    assert options == {
        "precision": "bf16",
        "excluded": (),
        "device": "cuda:1",
        "max_batch_tokens": 4096,
        "max_inflight_bulk": None,
        "memory_fraction": 0.9,
    }
    with pytest.raises(EngineUnavailableError, match="A100 has no FP8"):
        plan_engine(tiny("llama"), Config(device="cuda:0", precision="fp8"))
    # Pooled rows in bfloat16 use the model's own weights.
    chosen = ChosenPrecision(name="fp8", excluded=("pooled_rows",), folder=tmp_path)
    make_engine(replace(plan, precision=chosen), tiny("mistral"), config)
    assert made[-1]["excluded"] == ("pooled_rows",)
    assert isinstance(made[-1]["weights"], Weights)


def test_a_precision_that_no_engine_here_has(tiny: Callable[[str], ModelFiles]) -> None:
    told = r"^engine = 'auto', precision = 'fp8' cannot be used here: tensorrt_llm: "
    with pytest.raises(EngineUnavailableError, match=told):
        choose_engine(Config(precision="fp8"))
    told = r"^precision = 'fp8': the engine openvino has auto, int8, float32$"
    with pytest.raises(ConfigError, match=told):
        choose_engine(Config(engine="openvino", precision="fp8"))


REPORT = FidelityReport(
    fingerprint="",
    engine="openvino",
    hardware=int8.int8_hardware(),
    precision="int8",
    excluded=(),
    reference="float32",
    max_seq_tokens=512,
    template=None,
    num_texts=200,
    texts_digest="",
    mean=1.0,
    p1=1.0,
    min=1.0,
    top10_overlap=None,
    worst=(),
    versions={},
)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that fakes engine directories in the cache, with their fidelity reports."""

    def put(*versions: tuple[str, tuple[str, ...], str | None, float], **changes: Any) -> None:
        made = [
            SimpleNamespace(
                folder=Path(f"/{precision}-{len(excluded)}"),
                precision=precision,
                excluded=excluded,
                report=engine and replace(REPORT, engine=engine, mean=mean, p1=mean, **changes),
            )
            for precision, excluded, engine, mean in versions
        ]
        monkeypatch.setattr(precision_module, "_compiled", lambda files, config: made)

    return put


def test_auto_takes_what_was_measured_to_be_faithful(
    compiled: Callable[..., None],
    tiny: Callable[[str], ModelFiles],
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = tiny("bert")
    assert plan_engine(files, Config()).precision == ChosenPrecision(name="float32")
    compiled(("int8", (), None, 1.0), ("int8", ("layers.0.q",), "tensorrt_llm", 1.0))
    assert plan_engine(files, Config()).precision.name == "float32"
    compiled(
        ("int8", (), "openvino", 0.99),
        ("int8", ("layers.0.q", "layers.0.k"), "openvino", 0.9999),
        ("int8", ("layers.0.q",), "openvino", 0.9995),
    )
    with caplog.at_level(logging.INFO):
        chosen = plan_engine(files, Config()).precision
    assert chosen.excluded == ("layers.0.q",)
    assert chosen.folder == Path("/int8-1")
    assert str(chosen) == "int8 without layers.0.q"
    assert [record.getMessage() for record in caplog.records] == [
        "/int8-0 is not used by itself: mean cosine 0.99000, p1 0.99000 on 200 texts",
        "engine openvino, precision int8: mean cosine 0.99950, p1 0.99950 on 200 texts",
    ]


@pytest.mark.parametrize(
    ("engine", "changes", "doubt"),
    [
        (None, {}, "it was not measured"),
        ("cuda", {}, f"it was measured on cuda, {REPORT.hardware}"),
        ("openvino", {"hardware": "an abacus"}, "it was measured on openvino, an abacus"),
        ("openvino", {"reference": "bf16"}, "it was compared with bf16"),
        ("openvino", {"reference": "int8"}, "it was compared with int8"),
        ("openvino", {"max_seq_tokens": 23}, "it was measured on texts cut at 23 tokens"),
        ("openvino", {"num_texts": 99}, "it was measured on 99 texts"),
    ],
)
def test_a_report_that_says_nothing_of_this_use(
    compiled: Callable[..., None],
    tiny: Callable[[str], ModelFiles],
    caplog: pytest.LogCaptureFixture,
    engine: str | None,
    changes: dict[str, Any],
    doubt: str,
) -> None:
    files = tiny("bert")
    assert files.spec.max_seq_tokens == 24
    compiled(("int8", (), engine, 1.0), **changes)
    with caplog.at_level(logging.INFO):
        assert plan_engine(files, Config()).precision.name == "float32"
    assert [record.getMessage() for record in caplog.records] == [
        f"/int8-0 is not used by itself: {doubt}"
    ]


def test_pooled_rows_are_for_one_engine(
    compiled: Callable[..., None], tiny: Callable[[str], ModelFiles]
) -> None:
    files = tiny("bert")
    compiled(("fp8", ("pooled_rows",), None, 1.0))
    for engine, excluded in (("cuda", ("pooled_rows",)), ("tensorrt_llm", ())):
        chosen = choose_precision(engine, "", files, Config(precision="fp8"), None)
        assert (chosen.name, chosen.excluded) == ("fp8", excluded)
    compiled(("fp8", ("pooled_rows",), "tensorrt_llm", 1.0), hardware="")
    assert choose_precision("tensorrt_llm", "", files, Config(), None).name == "bf16"


def test_pooled_rows_need_the_model(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    files = read_model_files(tiny_folder("mistral"))
    folder = compile_model(files, "fp8", ["pooled_rows"], Config(), out=tmp_path / "out")
    manifest = open_engine_folder(folder)
    assert manifest.excluded == ("pooled_rows",)
    with pytest.raises(ConfigError, match=r"was compiled with pooled_rows, .*give the model it wa"):
        plan_engine(read_model_files(folder, is_compiled=True), Config(), manifest)


def test_a_report_counts_for_what_was_asked(
    compiled: Callable[..., None], tiny_folder: Callable[[str], Path]
) -> None:
    compiled(("int8", (), "openvino", 1.0))
    scoring = read_model_files(tiny_folder("bert-reranker"), with_head=True)
    assert plan_engine(scoring, Config()).precision.name == "int8"

    def asked(body: str) -> ModelFiles:
        template = PairTemplate(prefix="", body=body, suffix="")
        head = Head(labels=("score",), activation="identity", template=template)
        return replace(scoring, spec=replace(scoring.spec, head=head))

    # Without a template, the same folder is an embedding model.
    one, other = asked("{query} {document}"), asked("{document} {query}")
    assert plan_engine(one, Config()).precision.name == "float32"
    assert plan_engine(one, Config(precision="int8")).precision.name == "int8"
    compiled(("int8", (), "openvino", 1.0), template=template_facts(one.spec))
    assert plan_engine(one, Config()).precision.name == "int8"
    for files in (other, scoring):
        assert plan_engine(files, Config()).precision.name == "float32"


def test_the_hardware_that_int8_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(int8, "CPUINFO", tmp_path / "cpuinfo")
    assert int8.int8_hardware() == "x86_64"
    for flags, expected in (
        ("avx2 avx512f", "x86_64"),
        ("avx512_vnni avx2", "x86_64 with VNNI"),
        ("avx_vnni", "x86_64 with VNNI"),
    ):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: none\n")
        assert int8.int8_hardware() == expected


def test_a_forced_precision_needs_no_report(
    compiled: Callable[..., None], tiny: Callable[[str], ModelFiles]
) -> None:
    files = tiny("bert")
    config = Config(precision="int8")
    compiled()
    assert plan_engine(files, config).precision == ChosenPrecision(name="int8")
    compiled(("int8", (), None, 0.0), ("int8", ("layers.0.q",), "openvino", 0.9995))
    assert plan_engine(files, config).precision.excluded == ("layers.0.q",)
    compiled(("int8", (), "openvino", 0.5))
    assert plan_engine(files, config).precision.folder == Path("/int8-0")
    assert plan_engine(files, Config(precision="float32")).precision.folder is None


def test_options_reach_the_engine(tiny: Callable[[str], ModelFiles], tmp_path: Path) -> None:
    files = tiny("bert")
    config = Config(
        threads=1, max_batch_tokens=99, max_inflight_batches=3, engine_cache_dir=tmp_path
    )
    engine = make_engine(plan_engine(files, config), files, config)
    assert isinstance(engine, OpenVINOEngine)
    assert engine.limits.max_batch_tokens == 99
    assert engine.limits.max_inflight_bulk == 3
    assert engine.limits.num_parallel_batches == 1
    engine.close()
    assert list((tmp_path / "openvino").iterdir())


def test_devices_share_the_threads(tiny: Callable[[str], ModelFiles], tmp_path: Path) -> None:
    config = Config(device="cpu,cpu", threads=2, engine_cache_dir=tmp_path)
    files = tiny("bert")
    engine = make_engine(plan_engine(files, config), files, config)
    assert isinstance(engine, ManyEngines)
    assert engine.limits.num_parallel_batches == 2
    engine.close()


def test_an_engine_that_fails_leaves_none_of_the_others(
    tiny: Callable[[str], ModelFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    class Engine:
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    engine = Engine()
    answers = iter([engine])

    def make(*args: object) -> Engine:
        return next(answers)

    monkeypatch.setattr(make_module, "_make_openvino", make)
    plan = EnginePlan(
        engine="openvino",
        devices=("cpu", "cpu"),
        hardware="",
        precision=ChosenPrecision(name="float32"),
    )
    with pytest.raises(StopIteration):
        make_engine(plan, tiny("bert"), Config(engine_cache_dir=tmp_path))
    assert engine.is_closed


def test_choosing_imports_no_engine() -> None:
    program = (
        "import sys; from embedlib.config import Config; "
        "from embedlib.engines.select import choose_engine; choose_engine(Config()); "
        "sys.exit(any(name in sys.modules for name in ('openvino', 'torch', 'tensorrt_llm')))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, timeout=60).returncode == 0

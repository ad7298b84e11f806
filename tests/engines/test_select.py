from __future__ import annotations

import gc
import logging
import re
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from embedlib.config import Config
from embedlib.engines import machine as machine_module
from embedlib.engines.cuda.kind import KIND as CUDA_KIND
from embedlib.engines.gpu_memory import needed_bytes
from embedlib.engines.gpus import Gpu
from embedlib.engines.kind import ChosenPrecision, EngineKind, EnginePlan
from embedlib.engines.machine import Machine
from embedlib.engines.make import make_engine
from embedlib.engines.many import ManyEngines
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.kind import KIND as OPENVINO_KIND
from embedlib.engines.precision import choose_precision
from embedlib.engines.registry import OWN_KINDS, available_engines, find_devices, find_kind
from embedlib.engines.select import choose_engine, plan_engine
from embedlib.engines.tensorrt_llm.kind import KIND as TENSORRT_LLM_KIND
from embedlib.errors import ConfigError, EngineUnavailableError, EngineUnsupportedError
from embedlib.models.compiled.compile import compile_model
from embedlib.models.compiled.engine_folder import verify_engine_folder
from embedlib.models.compiled.fidelity_report import template_facts
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.spec import Head, LateInteraction, PairTemplate
from embedlib.packages.installing import install_line
from embedlib.session.loading import load_model
from tests.fidelity_reports import make_report
from tests.machines import A100, CUDA, H200, T4, TRTLLM, fake_machine, gpu, with_cpu
from tests.waiting import WAIT_SECONDS

GIB = 1 << 30
NOTHING = fake_machine()
VNNI = with_cpu(NOTHING, "avx512_vnni")


@pytest.fixture
def tiny(tiny_folder: Callable[[str], Path]) -> Callable[[str], ModelFiles]:
    return lambda variant: read_model_files(tiny_folder(variant))


def reason(name: str, machine: Machine, config: Config | None = None) -> str:
    choice = find_devices(find_kind(name, machine), config or Config(), machine)
    assert not choice.is_available
    return choice.reason


def test_every_engine_has_a_reason_in_one_line() -> None:
    for machine in (Machine(), NOTHING, fake_machine(H200, packages={**CUDA, **TRTLLM})):
        engines = available_engines(machine=machine)
        assert [choice.name for choice in engines] == ["tensorrt_llm", "cuda", "openvino"]
        for choice in engines:
            assert choice.reason
            assert "\n" not in choice.reason


@pytest.mark.parametrize("engine", ["auto", "openvino"])
@pytest.mark.parametrize("device", [None, "cpu", "all", ("cpu", "cpu")])
def test_what_runs_on_a_cpu(engine: Any, device: Any) -> None:
    choice = choose_engine(Config(engine=engine, device=device), NOTHING)
    assert choice.name == "openvino"
    assert choice.is_available
    assert choice.version is not None
    assert choice.devices == (("cpu", "cpu") if isinstance(device, tuple) else ("cpu",))


@pytest.mark.parametrize("engine", ["cuda", "tensorrt_llm"])
def test_an_engine_that_is_not_there_says_why(engine: str) -> None:
    with pytest.raises(EngineUnavailableError, match=f"^engine = '{engine}' cannot be used here: "):
        choose_engine(Config(engine=engine), NOTHING)


def test_another_device_is_refused_by_its_name() -> None:
    told = (
        r"^engine = 'auto', device = 'cuda:1' cannot be used here: tensorrt_llm: .*not on cuda:1$"
    )
    with pytest.raises(EngineUnavailableError, match=told):
        choose_engine(Config(device="cuda:1"), NOTHING)


def test_an_unknown_engine_lists_the_known_ones() -> None:
    told = r"^engine = 'onnx'; it must be one of auto, tensorrt_llm, cuda, openvino$"
    with pytest.raises(ConfigError, match=told):
        choose_engine(Config(engine="onnx"), NOTHING)
    with pytest.raises(ConfigError, match=told):
        load_model("no/such-model", Config(engine="onnx"), machine=NOTHING)


def test_without_openvino_auto_says_what_to_install() -> None:
    bare = replace(NOTHING, has_module=lambda name: False)
    with pytest.raises(EngineUnavailableError, match="pip install openvino"):
        choose_engine(Config(), bare)


@pytest.mark.parametrize(
    ("gpus", "told"),
    [([A100], "bfloat16"), ([H200, A100], "bfloat16"), ([H200], "FP8 or bfloat16")],
)
def test_only_gpus_with_fp8_are_said_to_have_it(gpus: list[Gpu], told: str) -> None:
    choice = choose_engine(Config(device="all"), fake_machine(*gpus, packages=CUDA))
    assert choice.reason.endswith(f", in {told}")
    choice = choose_engine(Config(), fake_machine(*gpus[-1:], packages=TRTLLM))
    assert choice.reason.endswith(f", in {told}")


def test_the_log_says_why_auto_skips_an_engine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert choose_engine(Config(), NOTHING).name == "openvino"
    assert [record.getMessage() for record in caplog.records] == [
        f"engine {name} is not used: {reason(name, NOTHING)}" for name in ("tensorrt_llm", "cuda")
    ]


def test_a_gpu_and_tensorrt_llm() -> None:
    machine = fake_machine(H200, packages=TRTLLM)
    choice = choose_engine(Config(), machine)
    assert (choice.name, choice.version) == ("tensorrt_llm", "1.3.0rc26")
    assert choice.devices == ("cuda:0",)
    assert choice.reason == "runs on cuda:0, NVIDIA H200, in FP8 or bfloat16"
    assert choose_engine(Config(device="cpu"), machine).name == "openvino"
    for device in ("cuda", "cuda:0", "all"):
        assert choose_engine(Config(device=device), machine).name == "tensorrt_llm"


def test_without_tensorrt_llm() -> None:
    told = reason("tensorrt_llm", fake_machine(H200))
    assert told.startswith(
        "it needs an NVIDIA GPU and the package tensorrt-llm, which is missing; pip install "
    )


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc15", "0.21.0"])
def test_a_version_that_is_too_old(version: str) -> None:
    told = reason("tensorrt_llm", fake_machine(H200, packages={"tensorrt_llm": version}))
    assert told.startswith(f"tensorrt-llm {version} is too old: it has no LLM.encode")
    assert told.endswith("install 1.3.0rc22 to 1.4.0rc1")


@pytest.mark.parametrize("version", ["1.3.0rc22", "1.3.0rc22.post1", "1.3.0", "1.4.0rc1", "dev"])
def test_versions_that_are_probed_when_loaded(version: str) -> None:
    machine = fake_machine(H200, packages={"tensorrt_llm": version})
    assert choose_engine(Config(), machine).name == "tensorrt_llm"


def test_without_a_gpu() -> None:
    machine = fake_machine(packages=TRTLLM)
    assert reason("tensorrt_llm", machine) == "no NVIDIA GPU was found (there is no nvidia-smi)"
    assert choose_engine(Config(), machine).name == "openvino"
    hidden = fake_machine(packages=TRTLLM, probe=lambda: ())
    assert "CUDA_VISIBLE_DEVICES leave none" in reason("tensorrt_llm", hidden)


def test_an_old_gpu() -> None:
    told = "Tesla T4 is too old: compute capability 7.5, at least 8.0 is needed"
    assert reason("tensorrt_llm", fake_machine(T4, H200, packages=TRTLLM)) == told


def test_other_gpus_of_the_machine() -> None:
    machine = fake_machine(H200, A100, packages=TRTLLM)
    config = Config(device="cuda:1")
    told = reason("tensorrt_llm", machine, config)
    assert told.endswith("set CUDA_VISIBLE_DEVICES=1 and leave device out")
    told = reason("tensorrt_llm", machine, Config(device="cuda:2"))
    assert "there is no cuda:2; this process sees 2 GPUs" in told
    told = reason("tensorrt_llm", machine, Config(device="cuda:0,cuda:1"))
    assert "one GPU of a process" in told
    assert reason("openvino", machine, config) == "it computes on the CPU, not on cuda:1"
    told = "runs on cuda:0, NVIDIA H200, one of 2 GPUs here, in FP8 or bfloat16"
    assert choose_engine(Config(), machine).reason == told


class Closable:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def made_by(kind: EngineKind, make: Callable[..., object]) -> EngineKind:
    """Return a row whose engines are made by another function."""
    return replace(kind, make=cast(Any, make))


def test_all_of_several_gpus(
    tiny: Callable[[str], ModelFiles], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    machine = fake_machine(H200, A100, packages=TRTLLM)
    kind = made_by(TENSORRT_LLM_KIND, lambda plan, files, config: "engine")
    for device in (None, "all"):
        caplog.clear()
        config = Config(device=device, engine_cache_dir=tmp_path)
        plan = plan_engine(tiny("llama"), config, machine=machine)
        made: Any = make_engine(replace(plan, kind=kind), tiny("llama"), config)
        assert made == "engine"
        assert ("start a process for each of the others" in caplog.text) == (device == "all")
    lone = fake_machine(H200, packages=TRTLLM)
    assert plan_engine(tiny("llama"), Config(device="all"), machine=lone).warning == ""


@pytest.mark.parametrize("packages", [{**TRTLLM, **CUDA}, CUDA, TRTLLM, {}])
@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_load_lists_the_gpus_once(
    packages: dict[str, str],
    has_gpu: bool,
    tiny_folder: Callable[[str], Path],
    new_cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[None] = []

    def probe() -> list[Gpu]:
        asked.append(None)
        if not has_gpu:
            raise EngineUnavailableError("the GPUs are unknown: nvidia-smi failed")
        return [gpu("NVIDIA L4", 2048, 1900, (8, 9))]  # too small for any model

    machine = fake_machine(packages=packages, probe=probe)
    config = Config(engine_cache_dir=new_cache, threads=1)
    with caplog.at_level(logging.INFO):
        model = load_model(tiny_folder("bert"), config, machine=machine)
    model.engine.close()
    assert len(asked) == (1 if packages else 0)
    # The model was planned on the same machine.
    num_small = sum("the model needs about" in record.message for record in caplog.records)
    assert num_small == (len({"torch", "tensorrt_llm"} & packages.keys()) if has_gpu else 0)


def test_a_machine_keeps_the_reason_and_not_the_stack_of_the_error() -> None:
    class OfTheCaller:
        """Stands for an Embedder whose constructor lists the GPUs."""

    def probe() -> list[Gpu]:
        raise EngineUnavailableError("the GPUs are unknown: nvidia-smi failed")

    def load() -> weakref.ref[OfTheCaller]:
        of_the_caller = OfTheCaller()
        with pytest.raises(EngineUnavailableError, match="nvidia-smi failed"):
            machine.gpus()
        return weakref.ref(of_the_caller)

    machine = fake_machine(probe=probe)
    held = load()
    gc.collect()
    assert held() is None
    with pytest.raises(EngineUnavailableError, match="nvidia-smi failed"):
        machine.gpus()


def test_the_second_engine_is_planned_on_the_machine_of_the_first_with_new_answers(
    tiny_folder: Callable[[str], Path], new_cache: Path
) -> None:
    read: list[str] = []

    def read_file(path: str) -> str:
        read.append(path)
        return ""

    machine = replace(NOTHING, read=read_file)
    config = Config(engine_cache_dir=new_cache, threads=1, engine="openvino")
    model = load_model(tiny_folder("bert"), config, machine=machine)
    model.engine.close()
    num_read = len(read)
    model.lower_tokens().close()
    assert len(read) > num_read
    assert model.machine is machine


def test_an_engine_that_is_named_is_the_only_one_asked() -> None:
    def probe() -> list[Gpu]:
        raise AssertionError("the GPUs were listed")

    machine = fake_machine(packages={**TRTLLM, **CUDA}, probe=probe)
    assert choose_engine(Config(engine="openvino"), machine).name == "openvino"


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


@pytest.mark.parametrize(("engine", "packages"), [("tensorrt_llm", TRTLLM), ("cuda", CUDA)])
def test_a_gpu_that_is_too_small(
    engine: str,
    packages: dict[str, str],
    tiny: Callable[[str], ModelFiles],
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = fake_machine(gpu("NVIDIA L4", 2048, 1900, (8, 9)), packages=packages)
    told = (
        r"^cuda:0: the model needs about 2\.0 GiB; NVIDIA L4 has 2\.0 GiB, 1\.9 GiB free, of "
        r"which gpu_memory_fraction = 0\.9 allows 1\.8 GiB; take precision='fp8', a smaller "
        r"max_seq_tokens or max_batch_tokens, or a GPU with more free memory$"
    )
    with pytest.raises(EngineUnavailableError, match=told):
        plan_engine(tiny("llama"), Config(engine=engine), machine=machine)
    told = r"1\.9 GiB free, of .*; take a smaller max_seq_tokens or"
    for name, capability in (("fp8", (8, 9)), ("bf16", (8, 0))):
        small = fake_machine(gpu("NVIDIA L4", 2048, 1900, capability), packages=packages)
        choice = Config(engine=engine, precision=name)
        with pytest.raises(EngineUnavailableError, match=told):
            plan_engine(tiny("llama"), choice, machine=small)
    with caplog.at_level(logging.INFO):
        assert plan_engine(tiny("llama"), Config(), machine=machine).engine == "openvino"
    assert f"engine {engine} is not used: cuda:0: the model needs about" in caplog.text


def test_a_gpu_that_is_a_little_too_small(tiny: Callable[[str], ModelFiles]) -> None:
    machine = fake_machine(gpu("NVIDIA L4", 2048, 2047, (8, 9)), packages=CUDA)
    with pytest.raises(EngineUnavailableError) as caught:
        plan_engine(tiny("llama"), Config(engine="cuda", gpu_memory_fraction=1.0), machine=machine)
    needed, free = re.findall(r"about (\S+) GiB; .*, (\S+) GiB free", str(caught.value))[0]
    assert float(needed) > float(free)


def test_a_gpu_that_others_use(tiny: Callable[[str], ModelFiles]) -> None:
    machine = fake_machine(gpu("NVIDIA H200", 143771, 1000, (9, 0)), packages=TRTLLM)
    with pytest.raises(EngineUnavailableError, match=r"140\.4 GiB, 1\.0 GiB free"):
        plan_engine(tiny("llama"), Config(engine="tensorrt_llm"), machine=machine)


@pytest.mark.parametrize("packages", [TRTLLM, CUDA])
def test_fp8_on_a_gpu_without_it(
    packages: dict[str, str], tiny: Callable[[str], ModelFiles]
) -> None:
    machine = fake_machine(A100, packages=packages)
    told = r"^cuda:0: NVIDIA A100 has no FP8 \(compute capability 8\.0, FP8 needs 8\.9\)"
    with pytest.raises(EngineUnavailableError, match=told):
        plan_engine(tiny("llama"), Config(precision="fp8"), machine=machine)
    plan = plan_engine(tiny("llama"), Config(precision="bf16"), machine=machine)
    assert plan.precision.name == "bf16"


@pytest.mark.parametrize(
    ("version", "tried"), [("2.11.0+cu130", ("bf16",)), ("2.12.0", ("fp8", "bf16"))]
)
def test_fp8_that_an_old_torch_computes_wrongly_is_refused_before_it_is_compiled(
    version: str, tried: tuple[str, ...], tiny: Callable[[str], ModelFiles]
) -> None:
    ada = gpu("NVIDIA L4", 23034, 22500, (8, 9))
    machine = fake_machine(ada, packages={**CUDA, "torch": version})
    assert plan_engine(tiny("llama"), Config(), machine=machine).tried == tried
    if "fp8" not in tried:
        told = r"^cuda:0: FP8 on NVIDIA L4 needs torch 2\.12 or later; this is 2\.11\.0\+cu130; "
        with pytest.raises(EngineUnavailableError, match=told):
            plan_engine(tiny("llama"), Config(precision="fp8"), machine=machine)


def test_a_model_that_an_engine_cannot_run(tiny: Callable[[str], ModelFiles]) -> None:
    machine = fake_machine(H200, packages=TRTLLM)
    assert plan_engine(tiny("gemma2"), Config(), machine=machine).engine == "openvino"
    with pytest.raises(EngineUnsupportedError, match="attention_cap"):
        plan_engine(tiny("gemma2"), Config(engine="tensorrt_llm"), machine=machine)
    assert plan_engine(tiny("llama"), Config(), machine=machine).engine == "tensorrt_llm"
    late = LateInteraction(query_tokens=8, document_tokens=16, expansion=None)
    files = tiny("llama")
    spec = replace(files.spec, modules=(), late_interaction=late)
    files = replace(files, spec=spec, module_dirs=())
    assert plan_engine(files, Config(), machine=machine).engine == "openvino"
    with pytest.raises(EngineUnsupportedError, match="which a late-interaction model consists of"):
        plan_engine(files, Config(engine="tensorrt_llm"), machine=machine)


@pytest.mark.parametrize(("packages", "missing"), [((), "torch"), (("torch",), "triton")])
def test_the_cuda_engine_needs_two_packages(packages: tuple[str, ...], missing: str) -> None:
    machine = fake_machine(packages={name: CUDA[name] for name in packages})
    told = f"it needs an NVIDIA GPU and the package {missing}, which is missing; "
    told += install_line("cuda")
    assert reason("cuda", machine) == told


def test_a_gpu_and_torch() -> None:
    assert "no NVIDIA GPU was found" in reason("cuda", fake_machine(packages=CUDA))
    machine = fake_machine(H200, A100, packages=CUDA)
    choice = choose_engine(Config(), machine)
    assert (choice.name, choice.version, choice.devices) == ("cuda", "2.13.0", ("cuda:0",))
    assert choice.hardware == "NVIDIA H200"
    choice = choose_engine(Config(device="all"), machine)
    assert choice.devices == ("cuda:0", "cuda:1")
    assert choice.hardware == "NVIDIA A100 and NVIDIA H200"
    choice = choose_engine(Config(device="cuda:1"), machine)
    assert (choice.devices, choice.hardware) == (("cuda:1",), "NVIDIA A100")
    told = reason("cuda", machine, Config(device="cuda:2"))
    assert "there is no cuda:2; this process sees 2 GPUs" in told
    assert "not on cpu" in reason("cuda", machine, Config(device="cpu"))
    told = reason("cuda", fake_machine(T4, packages=CUDA))
    assert "Tesla T4 is too old: compute capability 7.5, at least 8.0" in told


@pytest.mark.parametrize("device", ["cuda,cuda:0", "cuda:0,cuda:00", "cuda:1,cuda:0,cuda:0"])
def test_a_gpu_that_is_named_twice(device: str) -> None:
    machine = fake_machine(H200, A100, packages=CUDA)
    told = reason("cuda", machine, Config(device=device))
    assert told == "cuda:0 is named twice; name each GPU once"


def test_all_gpus_but_those_that_are_too_old(
    tiny: Callable[[str], ModelFiles], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    machine = fake_machine(T4, H200, packages=CUDA)
    config = Config(device="all", engine_cache_dir=tmp_path)
    plan = plan_engine(tiny("llama"), config, machine=machine)
    assert (plan.engine, plan.devices, plan.hardware) == ("cuda", ("cuda:1",), "NVIDIA H200")
    kind = made_by(CUDA_KIND, lambda plan, files, config: Closable())
    make_engine(replace(plan, kind=kind), tiny("llama"), config)
    told = "device = 'all': cuda:0 is left out, Tesla T4 is too old: compute capability 7.5"
    assert told in caplog.text
    told = reason("cuda", fake_machine(T4, T4, packages=CUDA), config)
    assert told.startswith("cuda:0 is left out, Tesla T4 is too old")


def test_an_engine_gets_what_was_planned(tiny: Callable[[str], ModelFiles], tmp_path: Path) -> None:
    made: list[EnginePlan] = []

    def make(plan: EnginePlan, files: ModelFiles, config: Config) -> object:
        made.append(plan)
        return Closable()

    machine = fake_machine(A100, H200, packages=CUDA)
    config = Config(device="cuda:1,cuda:0", engine_cache_dir=tmp_path)
    plan = plan_engine(tiny("llama"), config, machine=machine)
    assert (plan.engine, plan.precision.name) == ("cuda", "bf16")
    plan = replace(plan, kind=made_by(CUDA_KIND, make), devices=("cuda:1",))
    make_engine(plan, tiny("llama"), config)
    (given,) = made
    assert (given.devices, given.gpus) == (("cuda:1",), (H200,))
    assert given.precision.folder is not None
    assert given.precision.folder.parent == tmp_path / "compiled"
    with pytest.raises(EngineUnavailableError, match="A100 has no FP8"):
        plan_engine(tiny("llama"), Config(device="cuda:0", precision="fp8"), machine=machine)


@pytest.mark.parametrize("excluded", [(), ("pooled_rows",)])
def test_the_cuda_engine_on_a_cpu(
    excluded: tuple[str, ...], tiny: Callable[[str], ModelFiles], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="the engine's module needs torch")
    from embedlib.engines.cuda.engine import CudaEngine

    config = Config(engine_cache_dir=tmp_path, max_batch_tokens=64)
    plan = EnginePlan(
        kind=CUDA_KIND,
        devices=("cpu",),
        hardware="",
        precision=ChosenPrecision(name="fp8", excluded=excluded),
    )
    # Pooled rows in bfloat16 read the model's own weights; those of an engine directory in FP8
    # would be refused.
    engine = make_engine(plan, tiny("mistral"), config)
    assert isinstance(engine, CudaEngine)
    assert engine.limits.max_batch_tokens == 64
    engine.close()


def test_a_precision_that_no_engine_here_has(tiny: Callable[[str], ModelFiles]) -> None:
    told = r"^engine = 'auto', precision = 'fp8' cannot be used here: tensorrt_llm: "
    with pytest.raises(EngineUnavailableError, match=told):
        choose_engine(Config(precision="fp8"), NOTHING)
    told = r"^precision = 'fp8': the engine openvino has auto, int8-g128, int8, bf16, float32$"
    with pytest.raises(ConfigError, match=told):
        choose_engine(Config(engine="openvino", precision="fp8"), NOTHING)


REPORT = make_report(hardware=VNNI.cpu_hardware())


Made = tuple[str, tuple[str, ...], "str | None", float]


def compiled(*versions: Made, **changes: Any) -> Any:
    """Return what takes the place of `known_versions`, each with what was measured."""
    made = [
        SimpleNamespace(
            folder=Path(f"/{precision}-{len(excluded)}"),
            precision=precision,
            excluded=excluded,
            report=engine and replace(REPORT, engine=engine, mean=mean, p1=mean, **changes),
        )
        for precision, excluded, engine, mean in versions
    ]
    return lambda *_: made


def planned(
    files: ModelFiles, config: Config, found: Any = None, machine: Machine = VNNI
) -> ChosenPrecision:
    """Return the precision, by default on a CPU that multiplies int8."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedlib.engines.precision.known_versions", found or compiled())
        return plan_engine(files, config, machine=machine).precision


def told_of_precision(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of precisions; engines that are skipped are logged beside it."""
    records = [each for each in caplog.records if each.name.endswith(".precision")]
    return [record.getMessage() for record in records]


def test_auto_takes_what_was_measured_to_be_faithful(
    tiny: Callable[[str], ModelFiles],
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = tiny("bert")
    assert planned(files, Config()) == ChosenPrecision(name="float32")
    unfit = compiled(("int8", (), None, 1.0), ("int8", ("layers.0.q",), "tensorrt_llm", 1.0))
    assert planned(files, Config(), unfit).name == "float32"
    found = compiled(
        ("int8", (), "openvino", 0.99),
        ("int8", ("layers.0.q", "layers.0.k"), "openvino", 0.9999),
        ("int8", ("layers.0.q",), "openvino", 0.9995),
    )
    with caplog.at_level(logging.INFO):
        chosen = planned(files, Config(), found)
    assert chosen.excluded == ("layers.0.q",)
    assert chosen.folder == Path("/int8-1")
    assert str(chosen) == "int8 without layers.0.q"
    assert told_of_precision(caplog) == [
        "/int8-0 is not used automatically: mean cosine 0.99000, p1 0.99000 on 200 texts",
        "engine openvino, precision int8: mean cosine 0.99950, p1 0.99950 on 200 texts",
    ]


def test_auto_takes_bf16_where_it_was_measured_on_such_a_cpu(
    tiny: Callable[[str], ModelFiles],
) -> None:
    files = tiny("bert")
    cpu = {"amx": "flags : amx_bf16\n", "old": "flags : avx2\n"}
    names = {}
    for name, cpuinfo in cpu.items():
        machine = fake_machine(files={"/proc/cpuinfo": cpuinfo, "/proc/meminfo": ""})
        machine = replace(machine, architecture=lambda: "x86_64")
        found = compiled(
            ("bf16", (), "openvino", 0.9999), hardware="x86_64 with AMX_BF16", precision="bf16"
        )
        names[name] = planned(files, Config(), found, machine).name
    assert names == {"amx": "bf16", "old": "float32"}


@pytest.mark.parametrize(
    ("engine", "changes", "doubt"),
    [
        (None, {}, "it was not measured"),
        ("cuda", {}, f"it was measured on cuda, {REPORT.hardware}"),
        ("openvino", {"hardware": "an abacus"}, "it was measured on openvino, an abacus"),
        ("openvino", {"reference": "bf16"}, "it was compared with bf16"),
        ("openvino", {"reference": "int8"}, "it was compared with int8"),
        ("openvino", {"max_seq_tokens": 23}, "it was measured on texts truncated to 23 tokens"),
        ("openvino", {"num_texts": 99}, "it was measured on 99 texts"),
    ],
)
def test_a_report_that_says_nothing_of_this_use(
    tiny: Callable[[str], ModelFiles],
    caplog: pytest.LogCaptureFixture,
    engine: str | None,
    changes: dict[str, Any],
    doubt: str,
) -> None:
    files = tiny("bert")
    assert files.spec.max_seq_tokens == 24
    found = compiled(("int8", (), engine, 1.0), **changes)
    with caplog.at_level(logging.INFO):
        assert planned(files, Config(), found).name == "float32"
    assert told_of_precision(caplog) == [f"/int8-0 is not used automatically: {doubt}"]


def test_pooled_rows_are_for_one_engine(
    tiny: Callable[[str], ModelFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = "embedlib.engines.precision.known_versions"
    files = tiny("bert")
    config = Config(precision="fp8")
    monkeypatch.setattr(known, compiled(("fp8", ("pooled_rows",), None, 1.0)))
    for kind, excluded in ((CUDA_KIND, ("pooled_rows",)), (TENSORRT_LLM_KIND, ())):
        chosen = choose_precision(kind, "", files, config)
        assert (chosen.name, chosen.excluded) == ("fp8", excluded)
    found = compiled(("fp8", ("pooled_rows",), "tensorrt_llm", 1.0), hardware="")
    monkeypatch.setattr(known, found)
    chosen = choose_precision(TENSORRT_LLM_KIND, "", files, Config())
    assert chosen.name == "bf16"


def test_pooled_rows_need_the_model(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    files = read_model_files(tiny_folder("mistral"))
    folder = compile_model(files, "fp8", ["pooled_rows"], Config(), out=tmp_path / "out")
    manifest = verify_engine_folder(folder)
    assert manifest.excluded == ("pooled_rows",)
    with pytest.raises(ConfigError, match=r"was compiled with pooled_rows, .*give the model it wa"):
        plan_engine(read_model_files(folder, is_compiled=True), Config(), manifest)


def test_a_report_counts_for_what_was_asked(tiny_folder: Callable[[str], Path]) -> None:
    found = compiled(("int8", (), "openvino", 1.0))
    scoring = read_model_files(tiny_folder("bert-reranker"), with_head=True)
    assert planned(scoring, Config(), found).name == "int8"

    def asked(body: str) -> ModelFiles:
        template = PairTemplate(prefix="", body=body, suffix="")
        head = Head(labels=("score",), activation="identity", template=template)
        return replace(scoring, spec=replace(scoring.spec, head=head))

    # Without a template, the same folder is an embedding model.
    one, other = asked("{query} {document}"), asked("{document} {query}")
    assert planned(one, Config(), found).name == "float32"
    assert planned(one, Config(precision="int8"), found).name == "int8"
    found = compiled(("int8", (), "openvino", 1.0), template=template_facts(one.spec))
    assert planned(one, Config(), found).name == "int8"
    for files in (other, scoring):
        assert planned(files, Config(), found).name == "float32"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("", "x86_64"),
        ("processor\t: 0\nflags\t\t: avx2 avx512f\nbugs\t: none\n", "x86_64"),
        ("processor\t: 0\nflags\t\t: avx512_vnni avx2\nbugs\t: none\n", "x86_64 with VNNI"),
        ("processor\t: 0\nflags\t\t: avx_vnni\nbugs\t: none\n", "x86_64 with VNNI"),
    ],
)
def test_the_hardware_that_int8_depends_on(cpuinfo: str, expected: str) -> None:
    machine = fake_machine(files={"/proc/cpuinfo": cpuinfo})
    assert replace(machine, architecture=lambda: "x86_64").cpu_hardware() == expected


def test_of_the_file_of_all_cores_only_the_first_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine_module, "CPU_INFO", str(path))
    assert Machine().cpu_fields() == {}
    path.write_text("flags : avx2\nmodel : 1\n\nflags : avx2\nmodel : 2\n")
    assert Machine().read(str(path)) == "flags : avx2\nmodel : 1\n"
    assert Machine().cpu_fields() == {"flags": "avx2", "model": "1"}
    path.write_bytes(b"Features : asimd\nmodel name : \xff\n")  # as a virtual machine may name it
    assert Machine().cpu_features() == {"asimd"}


def test_a_forced_precision_needs_no_report(tiny: Callable[[str], ModelFiles]) -> None:
    files = tiny("bert")
    config = Config(precision="int8")
    assert planned(files, config) == ChosenPrecision(name="int8")
    found = compiled(("int8", (), None, 0.0), ("int8", ("layers.0.q",), "openvino", 0.9995))
    assert planned(files, config, found).excluded == ("layers.0.q",)
    found = compiled(("int8", (), "openvino", 0.5))
    assert planned(files, config, found).folder == Path("/int8-0")
    assert planned(files, Config(precision="float32"), found).folder is None


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


def test_devices_share_the_threads(tiny: Callable[[str], ModelFiles], new_cache: Path) -> None:
    config = Config(device="cpu,cpu", threads=2, engine_cache_dir=new_cache)
    files = tiny("bert")
    engine = make_engine(plan_engine(files, config), files, config)
    assert isinstance(engine, ManyEngines)
    assert engine.limits.num_parallel_batches == 2
    engine.close()


def test_an_engine_that_fails_leaves_none_of_the_others(
    tiny: Callable[[str], ModelFiles], tmp_path: Path
) -> None:
    engine = Closable()
    answers = iter([engine])
    plan = EnginePlan(
        kind=made_by(OPENVINO_KIND, lambda plan, files, config: next(answers)),
        devices=("cpu", "cpu"),
        hardware="",
        precision=ChosenPrecision(name="float32"),
    )
    with pytest.raises(StopIteration):
        make_engine(plan, tiny("bert"), Config(engine_cache_dir=tmp_path))
    assert engine.is_closed


def test_every_row_is_whole() -> None:
    for kind in OWN_KINDS:
        assert kind.precisions
        assert kind.device_types
        assert set(kind.searched_precisions) <= set(kind.precisions)
        for coarser, closer in kind.coarser_forms.items():
            assert kind.precisions.index(coarser) < kind.precisions.index(closer)
        if kind.searched_precisions:
            assert kind.lower is not None
            assert kind.open_weights is not None
    assert sum(kind.check_emulation is not None for kind in OWN_KINDS) == 1


def test_choosing_imports_no_engine() -> None:
    program = (
        "import sys; from embedlib.config import Config; "
        "from embedlib.engines.machine import Machine; "
        "from embedlib.engines.select import choose_engine; choose_engine(Config(), Machine()); "
        "sys.exit(any(name in sys.modules for name in ('openvino', 'torch', 'tensorrt_llm')))"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, timeout=WAIT_SECONDS, check=True)

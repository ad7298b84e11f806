"""What torch is asked of GPUs, with its functions replaced."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from embedlib.config import Config
from embedlib.engines.gpus import Gpu
from embedlib.engines.kind import ChosenPrecision, EnginePlan
from embedlib.engines.torch_gpus import take_share, torch_index
from embedlib.errors import EngineUnavailableError
from embedlib.system.memory import GIB
from tests.machines import A100, H200

torch = pytest.importorskip("torch", reason="the module asks torch")

FIRST = replace(H200, uuid="GPU-11111111-aaaa")
SECOND = replace(A100, uuid="GPU-22222222-bbbb")


def torch_sees(monkeypatch: pytest.MonkeyPatch, *gpus: tuple[str, str]) -> None:
    """Replace what torch says of its GPUs: (UUID, name)."""
    for name, value in {
        "device_count": lambda: len(gpus),
        "init": lambda: None,
        "get_device_properties": lambda index: SimpleNamespace(uuid=gpus[index][0]),
        "get_device_name": lambda index: gpus[index][1],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


def test_a_gpu_is_found_by_its_uuid_in_the_order_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_sees(monkeypatch, ("22222222-bbbb", A100.name), ("11111111-aaaa", H200.name))
    assert [torch_index("cuda:0", FIRST), torch_index("cuda", FIRST)] == [1, 1]
    assert torch_index("cuda:1", SECOND) == 0


def test_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_sees(monkeypatch, ("22222222-bbbb", A100.name))
    told = (
        "^cuda:0 is NVIDIA H200 in bus order, and torch sees NVIDIA A100; set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID before the program starts$"
    )
    with pytest.raises(EngineUnavailableError, match=told):
        torch_index("cuda:0", FIRST)
    assert torch_index("cuda:1", FIRST) == 1  # opening it says that there is none


@pytest.mark.parametrize("gpu", [FIRST, H200])
def test_a_driver_that_torch_is_too_new_for(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch counts GPUs with the driver's own library, which is as old as they are."""

    def fail(*_: object) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).")

    torch_sees(monkeypatch, ("11111111-aaaa", H200.name))
    for name in ("init", "get_device_properties", "get_device_name"):
        monkeypatch.setattr(torch.cuda, name, fail)
    told = r"^torch \S+ cannot use cuda:0: The NVIDIA driver on your system is too old \(found"
    with pytest.raises(EngineUnavailableError, match=told):
        torch_index("cuda:0", gpu)


def test_the_cuda_engine_gets_the_number_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from embedlib.engines.cuda import kind

    torch_sees(monkeypatch, ("22222222-bbbb", A100.name), ("11111111-aaaa", H200.name))
    monkeypatch.setattr("embedlib.engines.cuda.engine.CudaEngine", lambda *_, **options: options)
    plan = EnginePlan(
        kind=kind.KIND,
        devices=("cuda:0",),
        gpus=(FIRST,),
        hardware="",
        precision=ChosenPrecision(name="bf16"),
    )
    made: Any = kind.lower(cast(Any, None), {}, plan, Config())
    assert made["device"] == "cuda:1"


def test_tensorrt_llm_works_on_the_first_gpu_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from embedlib.engines.tensorrt_llm.kind import check_devices

    # Other tests import it anew, which the attribute of its package does not follow.
    runtime = importlib.import_module("embedlib.engines.tensorrt_llm.runtime")
    monkeypatch.setattr(runtime, "load_library", lambda: None)
    torch_sees(monkeypatch, ("11111111-aaaa", H200.name), ("22222222-bbbb", A100.name))
    check_devices(("cuda:0",), (FIRST,))
    with pytest.raises(
        EngineUnavailableError, match="which is not NVIDIA A100, the first one in b"
    ):
        check_devices(("cuda:0",), (SECOND,))


@pytest.mark.parametrize("gpu", [SECOND, A100])
def test_a_mig_device_has_another_uuid_than_its_gpu(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_sees(monkeypatch, ("33333333-cccc", f"{A100.name} MIG 3g.20gb"))
    assert torch_index("cuda:0", gpu) == 0


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Return the limits that torch is given, newest last: (GPU, share); 80 GiB, nothing taken."""
    found: list[tuple[int, float]] = []
    reserve(monkeypatch, 0)
    for name, value in {
        "get_per_process_memory_fraction": lambda index: 0.95,
        "set_per_process_memory_fraction": lambda share, index: found.append((index, share)),
        "get_device_properties": lambda index: SimpleNamespace(total_memory=80 * GIB),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    # An engine of another test may live on with its share.
    monkeypatch.setattr("embedlib.engines.torch_gpus._TAKEN", {})
    return found


def reserve(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: gib * GIB)


def take(*shares: float, index: int = 0) -> list[Callable[[], None]]:
    return [take_share(index, share) for share in shares]


def test_shares_of_models_add_up(limits: list[tuple[int, float]]) -> None:
    first, second, third = take(0.45, 0.45, 0.2)
    assert [share for _, share in limits] == pytest.approx([0.45, 0.9, 1.0])
    for give_back in (second, first, third):
        give_back()
    assert limits[3:] == [(0, pytest.approx(0.65)), (0, pytest.approx(0.2)), (0, 0.95)]


def test_each_gpu_has_its_own_limit(limits: list[tuple[int, float]]) -> None:
    given = [*take(0.5), *take(0.4, index=1)]
    for give_back in given:
        give_back()
    assert limits == [(0, 0.5), (1, 0.4), (0, 0.95), (1, 0.95)]


def test_a_limit_leaves_what_torch_has_already(
    limits: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(monkeypatch, 20)  # by the program itself
    first, second = take(0.5, 0.1)
    reserve(monkeypatch, 64)
    first()
    second()
    assert [share for _, share in limits] == pytest.approx([0.75, 0.85, 0.8, 0.95])


def test_an_engine_that_fails_gives_its_share_back(
    limits: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedlib.engines.cuda.device import CudaDevice

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    device = CudaDevice("cuda:0", 0.6)
    del device
    gc.collect()
    assert limits == [(0, 0.6), (0, 0.95)]

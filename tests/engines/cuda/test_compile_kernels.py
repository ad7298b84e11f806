from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from embedlib.engines.cuda.kernels.attention_sizes import MAX_SHARED_BYTES, attention_blocks
from tests.waiting import WAIT_SECONDS

SCRIPT = Path(__file__).parent / "compile_kernels.py"
LAUNCHES = Path(__file__).parent / "compile_launches.py"
FEW_BYTES = 256
"""Maximum bytes spilled outside the loop; a loop that spills writes kilobytes."""


def printed(script: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "FP_FUSION" not in done.stderr  # 3.9 warns if it is not set
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compiled(capability: int, names: str, folder: Path) -> dict[str, dict[str, Any]]:
    kernels = printed(SCRIPT, folder, str(capability), names)
    for name, kernel in kernels.items():
        assert kernel["shared_bytes"] <= MAX_SHARED_BYTES[divmod(capability, 10)], name
        assert kernel["spilled_bytes"] <= FEW_BYTES, name
    return kernels


def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    # Attention in all sizes, `.` instead of these names, takes a minute.
    names = "(?!attend)|attend (64 (window|distances)|128 causal|256 pooled)$"
    kernels = compiled(90, names, tmp_path)
    assert len(kernels) == 15
    assert all("griddepcontrol.wait" in kernel["instructions"] for kernel in kernels.values())
    for name in ("norm", "activate"):
        # One instruction that rounds two numbers to nearest.
        assert "cvt.rn.satfinite.e4m3x2.f32" in kernels[name]["instructions"]
    for name in ("attend 128 causal", "attend 64 window", "attend 64 distances"):
        # Hopper's matrix instruction, and asynchronous copies.
        assert {"wgmma.mma_async", "cp.async"} <= set(kernels[name]["instructions"])
    for name in ("few rows", "few rows full", "few rows bf16"):
        assert {"wgmma.mma_async", "cp.async"} <= set(kernels[name]["instructions"])
    # One query has too few rows for that instruction.
    assert "mma.sync" in kernels["attend 256 pooled"]["instructions"]


def test_attention_compiles_for_the_least_shared_memory(tmp_path: Path) -> None:
    kernels = compiled(89, "attend (64 (bias|distances)|256 both ways)$", tmp_path)
    assert len(kernels) == 3
    assert not any("griddepcontrol.wait" in kernel["instructions"] for kernel in kernels.values())
    for kernel in kernels.values():
        assert {"mma.sync", "cp.async"} <= set(kernel["instructions"])


def test_all_that_a_model_launches_is_compiled_at_its_start(tmp_path: Path) -> None:
    common = {"embed_kernel", "norm_kernel", "attend_kernel", "activate_kernel"}
    expected = {
        "mistral fp8": common | {"rotate_kernel"},
        "mpnet bf16": common | {"pool_kernel"},
        # The others are those of a model before it.
        "deberta-v2 bf16": {"attend_kernel"},
        "nomic_bert-moe bf16": {
            *("embed_kernel", "attend_kernel", "activate_kernel"),
            *("choose_experts_kernel", "activate_experts_kernel"),
        },
        "lfm2 bf16": {
            *("norm_kernel", "rotate_kernel", "attend_kernel", "activate_kernel"),
            "convolve_kernel",
        },
    }
    for model, names in printed(LAUNCHES, tmp_path, "90", *expected).items():
        assert set(names["start"]) == expected.pop(model)
        assert names["traffic"] == []  # compiling takes seconds, and blocks all batches
    assert not expected


def test_blocks_of_keys_are_as_large_as_shared_memory_allows() -> None:
    assert attention_blocks(128, 128, 2, (9, 0), has_table=False) == (64, 3)
    assert attention_blocks(128, 128, 2, (8, 9), has_table=False) == (64, 2)
    assert attention_blocks(64, 256, 2, (8, 9), has_table=False) == (32, 2)
    assert attention_blocks(128, 64, 2, (8, 9), has_table=True) == (32, 2)
    assert attention_blocks(64, 256, 2, (7, 5), has_table=False) == (16, 1)
    assert attention_blocks(64, 128, 2, (99, 0), has_table=False) == (32, 2)
    assert attention_blocks(16, 256, 4, (9, 0), has_table=False) == (16, 1)

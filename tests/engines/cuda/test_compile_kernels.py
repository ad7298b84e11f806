from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "compile_kernels.py"
MAX_SHARED_BYTES = 227 << 10
"""Of a block on Hopper. Source: CUDA C++ Programming Guide, technical specifications."""


def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "90"], capture_output=True, text=True, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout)
    assert len(kernels) == 7
    for kernel in kernels.values():
        assert kernel["shared_bytes"] <= MAX_SHARED_BYTES
    for name in ("norm", "activate"):
        # One instruction that rounds to the nearest, two numbers at a time.
        assert "cvt.rn.satfinite.e4m3x2.f32" in kernels[name]["ptx"]
    for name in ("attend causally", "attend with everything"):
        # Hopper's own matrix instruction, and copies that do not wait.
        assert "wgmma.mma_async" in kernels[name]["ptx"]
        assert "cp.async" in kernels[name]["ptx"]

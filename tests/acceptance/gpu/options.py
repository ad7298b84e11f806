"""What a run on a GPU is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from embedlib.errors import ConfigError
from tests.acceptance.gpu.models import DEFAULT, SHAPES

Device = Literal["cuda", "cpu"]

BLOCKS: Final = ("ceilings", "bulk", "query", "mixed", "clients", "variants", "peers", "start")
"""In the order they are run in. The gate stands before all but the ceilings and is no choice."""


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Options of `run_gpu_bench`.

    Raises:
        ConfigError: a value is not allowed; the message names the option.
    """

    models: tuple[str, ...] = DEFAULT
    """Whose sizes are measured, in this order."""
    blocks: tuple[str, ...] = BLOCKS
    minutes: float = 8.0
    """For everything; a block that would take longer is cut short."""
    device: Device = "cuda"
    """cpu: the same run with tiny models and the engine's emulation; its speeds mean nothing."""
    vllm_path: Path | None = None
    """The folder that vLLM and what it needs were installed into (pip install --target)."""

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        _check_names("models", self.models, tuple(SHAPES))
        _check_names("blocks", self.blocks, BLOCKS)
        if not self.minutes > 0:
            raise ConfigError(f"minutes = {self.minutes}; it must be more than 0")
        if self.vllm_path is not None and not (self.vllm_path / "vllm").is_dir():
            raise ConfigError(
                f"vllm_path = {str(self.vllm_path)!r} has no folder vllm; give the folder that "
                "pip install --target wrote"
            )


def _check_names(option: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse none at all, unknown ones, and one given twice."""
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} = {name!r}; it must be one of {', '.join(known)}")
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{option} = {','.join(names)!r}; name at least one, and each once")

"""The options of the constructors by name and type, for editors and type checkers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from embedlib.config import OnTruncate, PrecisionName, Similarity


class ConfigOptions(TypedDict, total=False):
    """The fields of `Config`, which says what they mean; a test compares the two."""

    revision: str | None
    token: str | bool | None
    cache_folder: str | Path | None
    local_files_only: bool
    prompts: Mapping[str, str] | None
    default_prompt_name: str | None
    examples: Sequence[Mapping[str, str]] | None
    template: str | None
    max_seq_tokens: int | None
    on_truncate: OnTruncate
    truncate_dim: int | None
    quantization_ranges: Any
    similarity_fn_name: Similarity | None
    engine: str
    device: str | Sequence[str] | None
    precision: PrecisionName
    prepare: bool
    gpu_memory_fraction: float
    threads: int | None
    engine_cache_dir: str | Path | None
    max_batch_tokens: int | None
    max_inflight_batches: int | None
    max_queued_texts: int

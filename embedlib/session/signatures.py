"""The options of the constructors by name and type, for editors and type checkers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from embedlib.config import OnTruncate, PrecisionName, Ranges, Similarity


class ConfigOptions(TypedDict, total=False):
    """The fields of `Config` with their docstrings, which editors show; a test compares the two."""

    revision: str | None
    """Branch, tag or commit of a hub model. Pin a commit if vectors must never change."""
    token: str | bool | None
    """Hub token for private models; None: the token of your login."""
    cache_folder: str | Path | None
    """Folder for downloaded models; None: the hub's own cache."""
    local_files_only: bool
    """Never open a connection; loading fails if a file has not been downloaded."""
    prompts: Mapping[str, str] | None
    """Prompts by name; each replaces the model's own prompt of that name."""
    default_prompt_name: str | None
    """Name of the prompt that `encode` uses if a call names none; None: the model's default."""
    examples: Sequence[Mapping[str, str]] | None
    """Few-shot examples put in front of every query, each with `instruct`, `query`, `response`."""
    template: str | None
    """Name of the template (qwen3-reranker, mxbai-rerank-v2) for a reranker whose files have none.
    Models that embedlib knows by their hub name do not need it."""
    max_seq_tokens: int | None
    """Texts are truncated to this many tokens; fewer are faster. It must not exceed the number of
    positions of the model. None: the model's own limit."""
    on_truncate: OnTruncate
    """What happens to a text that is too long. warn: it is truncated, and a warning names its row;
    ignore: it is truncated without a warning; error: the call raises `SequenceTooLongError`; chunk
    (embeddings only): it is divided into windows, and its vector is the mean of theirs."""
    truncate_dim: int | None
    """Keep only this many first dimensions (Matryoshka models), or all, if there are fewer; None:
    the model's own number."""
    max_active_dims: int | None
    """Keep only this many weights of a sparse vector, the greatest; None: the model's own number,
    or all."""
    quantization_ranges: Ranges | None
    """For vectors in int8 and uint8: the ranges float32[2, D] that `Embedder.calibrate` returns, or
    the .npy file that contains them."""
    similarity_fn_name: Similarity | None
    """What `similarity` computes: cosine, dot, euclidean or manhattan; None: the model's own."""
    engine: str
    """auto takes the fastest engine that runs here; `embedlib doctor` shows which one and why. The
    name is checked when a model is loaded, because other packages can add engines."""
    device: str | Sequence[str] | None
    """cpu, cuda or cuda:N; several of them, as a tuple or with commas; or all. None: the engine's
    first device. Each device gets an engine of its own, and all take work from one queue."""
    precision: PrecisionName
    """auto takes the fastest precision that passed the fidelity gate (docs/engines.md). On a CPU:
    float32, int8, the faster, coarser int8-g128, or bf16 where the CPU multiplies bfloat16; on a
    GPU: fp8 or bf16."""
    prepare: bool
    """With precision="auto": whether the first load of a model on a machine measures the faster
    precisions, for some seconds, and another process goes on with it (docs/fidelity.md). Where
    float32 does not fit into memory the load waits for minutes, an hour at most. Also whether
    weights in 16 bits are copied as float32 where that is faster (docs/engines.md)."""
    prepare_seconds: float
    """How long a load waits for that at most, where float32 fits into memory; 0: not at all. More
    is worth it for a program that embeds for long, as `embedlib index` and `embedlib serve` do
    (60): larger models are measured too."""
    gpu_memory_fraction: float
    """Share of a GPU's memory that a model may take; those of a process's models add up."""
    threads: int | None
    """CPU cores to use; None: all cores that this process may run on, but no more than the
    processor time that its container allows."""
    engine_cache_dir: str | Path | None
    """Folder for engine directories; None: embedlib's folder in the user's cache."""
    max_batch_tokens: int | None
    """Token budget of a batch; None: the engine's measured best."""
    max_inflight_batches: int | None
    """Maximum bulk batches in flight; None: as many as keep the engine busy."""
    max_queued_texts: int
    """Maximum queued texts per lane; then bulk calls wait, and queries raise QueueFullError."""

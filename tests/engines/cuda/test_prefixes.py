from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.engines.cuda import engine as engine_module
from embedlib.engines.cuda import loaded_model, prefixes, reference, short_batches
from embedlib.engines.cuda.engine import CudaEngine
from embedlib.engines.cuda.inputs import packed_heads, tile_table
from embedlib.engines.cuda.kernels import attention as attention_kernel
from embedlib.engines.cuda.plan import Attend
from embedlib.engines.cuda.prefixes import Prefixes
from embedlib.engines.cuda.reference import AttentionShape, Prefix
from embedlib.engines.first_tokens import can_keep_prefix, num_shared, without_first
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Pooling
from embedlib.models.weights.load import load_weights
from embedlib.testing import TINY_VARIANTS, fake_spec, make_batch
from tests.waiting import WAIT_SECONDS

PREFIX = list(range(5, 25))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MIN_PREFIX_TOKENS", 4)
    monkeypatch.setattr(prefixes, "MIN_VOTES", 3)
    monkeypatch.setattr(short_batches, "BUCKET_TOKENS", (16, 32))


def batch_of(ids: list[list[int]], lane: Lane = Lane.QUERY) -> Batch:
    return make_batch(ids, lane)


def propose(policy: Prefixes, *ids: list[int], lane: Lane = Lane.QUERY) -> list[int] | None:
    """Return the prefix proposed after computing a batch, and keep it; None if there is none."""
    batch = batch_of(list(ids), lane)
    policy.end_use(policy.begin_use(batch))
    found = policy.propose(batch)
    if found is not None:
        policy.keep(found)
    return None if found is None else found.tolist()


def kept(policy: Prefixes, *ids: list[int]) -> list[int]:
    num_kept = policy.begin_use(batch_of(list(ids)))
    policy.end_use(num_kept)
    return num_kept.tolist()


SEQUENCES = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=12), min_size=1, max_size=5)


@given(SEQUENCES, st.lists(st.integers(1, 2), max_size=10))
def test_how_much_is_shared(sequences: list[list[int]], ids: list[int]) -> None:
    limit = prefixes.MIN_PREFIX_TOKENS
    expected = []
    for sequence in sequences:
        count = 0
        while count < min(len(ids), len(sequence) - 1) and sequence[count] == ids[count]:
            count += 1
        expected.append(count if count >= limit else 0)
    batch = batch_of(sequences)
    found = num_shared(batch, np.array(ids, np.int32), limit)
    assert found.tolist() == expected
    rest = without_first(batch, found)
    parts = np.split(rest.token_ids, rest.cu_seqlens[1:-1])
    for part, sequence, count in zip(parts, sequences, expected, strict=True):
        assert part.tolist() == sequence[count:]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(SEQUENCES, st.sampled_from(Lane), st.sampled_from(["end", "keep", "fail", ""])),
        max_size=40,
    )
)
def test_keys_never_serve_other_tokens(
    events: list[tuple[list[list[int]], Lane, str]],
) -> None:
    policy = Prefixes(6)
    memory: list[int] = []
    in_flight: list[NDArray[np.int32]] = []
    coming: NDArray[np.int32] | None = None
    for sequences, lane, event in events:
        batch = batch_of(sequences, lane)
        num_kept = policy.begin_use(batch)
        in_flight.append(num_kept)
        for sequence, count in zip(sequences, num_kept.tolist(), strict=True):
            assert sequence[:count] == memory[:count]
            assert count < len(sequence)
            assert not count or coming is None
        found = policy.propose(batch)
        if found is not None:
            assert coming is None
            assert not any(counts.any() for counts in in_flight)
            assert len(found) <= 6
            coming = found
        if event == "end":
            policy.end_use(in_flight.pop(0))
        elif event and coming is not None:
            coming = coming if event == "keep" else coming[:0]
            memory = coming.tolist()
            policy.keep(coming)
            coming = None


def test_what_is_common_is_kept_and_no_more() -> None:
    policy = Prefixes(100)
    assert propose(policy, [*PREFIX, 1, 2, 3]) is None
    assert propose(policy, [*PREFIX, 1, 2, 9]) is None
    assert propose(policy, [*PREFIX, 1, 8, 9]) == [*PREFIX, 1]
    assert kept(policy, [*PREFIX, 2], [*PREFIX, 1], [5, 6, 7, 8, 1], [5, 6, 7], [9] * 30) == [
        *(20, 20, 4, 0, 0)
    ]
    # A prefix that serves nearly as well stays; one that is longer by enough replaces it.
    for _ in range(4):
        assert propose(policy, [*PREFIX, 2, 3, 4, 9]) is None
    longer = [[*PREFIX, 3, 3, 3, 3, 9]] * 9
    assert propose(policy, *longer) is None  # because of the prefix they share with earlier batches
    assert propose(policy, *longer) == [*PREFIX, 3, 3, 3, 3]
    assert Prefixes(3).propose(batch_of([[*PREFIX, 1]] * 20)) is None


def test_a_batch_does_not_outlive_its_computation() -> None:
    policy = Prefixes(100)
    batch = batch_of([[*PREFIX, 1]] * 3)
    found = policy.propose(batch)
    assert found is not None
    assert not np.shares_memory(found, batch.token_ids)


def test_texts_that_differ_vote_it_down() -> None:
    policy = Prefixes(100)
    for number in range(20):
        assert propose(policy, [*PREFIX, number], [number] * 9) is None
    # Each lane has its own votes; a sequence that is too short has none.
    for number in range(2):
        assert propose(policy, [*PREFIX, 1], [3] * 3, lane=Lane.BULK) is None
        assert propose(policy, [number] * 9) is None
    assert propose(policy, [*PREFIX, 2], lane=Lane.BULK) == PREFIX


def test_a_prefix_in_use_is_not_replaced() -> None:
    policy = Prefixes(100)
    assert propose(policy, *[[*PREFIX, 1]] * 3) == PREFIX
    using = policy.begin_use(batch_of([[*PREFIX, 1]]))
    other = [[9] * 30] * 3
    assert propose(policy, *other, *other) is None
    assert kept(policy, [*PREFIX, 1]) == [20]
    policy.end_use(using)
    found = policy.propose(batch_of(other))
    assert found is not None
    assert found.tolist() == [9] * 29
    assert kept(policy, [*PREFIX, 1], [9] * 30) == [0, 0]  # its keys are being written
    assert policy.propose(batch_of([[*PREFIX, 1]] * 30)) is None
    policy.keep(found[:0])  # keeping it failed
    assert kept(policy, [*PREFIX, 1], [9] * 30) == [0, 0]


KEEPING = ["mistral", "qwen3", "gemma3_text-causal", "llama"]


class Watched:
    """An engine that signals when it keeps a prefix, and records the sizes of its batches."""

    def __init__(self, files: Any, **options: Any) -> None:
        given = {"precision": "float32", "device": "cpu", "max_batch_tokens": 256, **options}
        self.engine = CudaEngine(files.spec, load_weights(files), **given)
        self.has_kept = threading.Event()
        self.sizes: list[int] = []
        keep, run = self.engine._prefixes.keep, self.engine._model.executor.run

        def tell(ids: NDArray[np.int32]) -> None:
            keep(ids)
            self.has_kept.set()

        def count(group: Any, batch: Any, workspace: Any) -> None:
            self.sizes.append(batch.layout.num_tokens)
            run(group, batch, workspace)

        self.engine._prefixes.keep = tell  # type: ignore[method-assign]
        self.engine._model.executor.run = count  # type: ignore[method-assign]

    def embed(self, batch: Batch) -> NDArray[np.float32]:
        done = threading.Event()
        self.sizes.clear()
        pending = self.engine.submit(batch, done.set)
        assert done.wait(WAIT_SECONDS)
        return pending.result()


@pytest.mark.parametrize(
    ("variant", "precision", "excluded", "tolerance"),
    [
        *((variant, "float32", (), 1e-5) for variant in KEEPING),
        ("mistral", "bf16", (), 0.02),
        ("mistral", "fp8", ("pooled_rows",), 0.05),
    ],
)
def test_vectors_are_the_same(
    variant: str,
    precision: str,
    excluded: tuple[str, ...],
    tolerance: float,
    tiny_folder: Callable[[str], Path],
) -> None:
    files = read_model_files(tiny_folder(variant))
    options = {"precision": precision, "excluded": excluded}
    plain, watched = Watched(files, **options, keeps_prefix=False), Watched(files, **options)
    warming = batch_of([[*PREFIX, 3, 4], [*PREFIX, 5], [*PREFIX, 6, 7, 8]])
    watched.embed(warming)
    assert watched.has_kept.wait(WAIT_SECONDS)
    longest = files.spec.max_seq_tokens
    cases = [
        ([[*PREFIX, 9, 8]], 16),  # a recording, and a shorter one than without
        ([[*PREFIX, 9, 8], [5, 6, 7, 9], [*PREFIX[:9], 3, 4]], 32),
        ([[*PREFIX, *[7] * (longest - 20)], [*PREFIX, 3], [4] * longest], 2 * longest - 19),
    ]
    for ids, num_tokens in cases:
        batch = batch_of(ids)
        found, expected = watched.embed(batch), plain.embed(batch)
        assert set(watched.sizes) == {num_tokens}
        assert min(plain.sizes) > num_tokens
        errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert errors.max() <= tolerance
    for item in (plain, watched):
        item.engine.close()


@pytest.mark.parametrize("place", ["without_first", "_compute"])
def test_ctrl_c_ends_the_use_of_a_prefix(
    place: str, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(read_model_files(tiny_folder("mistral")))
    watched.embed(batch_of([[*PREFIX, 3, 4], [*PREFIX, 5], [*PREFIX, 6, 7, 8]]))
    assert watched.has_kept.wait(WAIT_SECONDS)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    owner = engine_module if place == "without_first" else watched.engine
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            watched.engine.compute(batch_of([[*PREFIX, 9]]))
    watched.has_kept.clear()
    watched.embed(batch_of([[9] * 30] * 3))
    assert watched.has_kept.wait(WAIT_SECONDS), "the first one is still in use"
    watched.engine.close()


def test_functions_of_whole_sequences_are_not_asked(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(read_model_files(tiny_folder("mistral")))
    engine = watched.engine
    batch = batch_of([[*PREFIX, number, *[7] * 20] for number in range(3)])
    expected = watched.embed(batch)
    assert watched.has_kept.wait(WAIT_SECONDS)

    def never(_: object) -> torch.Tensor:
        raise AssertionError("it knows nothing of kept keys")

    steps = [step for step in engine._model.plan.steps if isinstance(step, Attend)]
    served = dict.fromkeys(steps, never)
    asked = loaded_model.groups_of

    def watch(*args: Any) -> Any:
        assert not args[-1]
        return asked(*args)

    monkeypatch.setattr(loaded_model, "groups_of", watch)
    monkeypatch.setattr(engine._model.executor, "served_whole", served)
    np.testing.assert_allclose(watched.embed(batch), expected, atol=1e-5)
    assert set(watched.sizes) == {63}  # a long batch
    engine.close()


def test_a_prefix_that_fails_is_not_kept(tiny_folder: Callable[[str], Path]) -> None:
    files = read_model_files(tiny_folder("mistral"))
    watched = Watched(files)
    run = watched.engine._model.executor.run

    def broken(group: Any, batch: Any, workspace: Any) -> None:
        if batch.layout.num_tokens == len(PREFIX):
            raise RuntimeError("no")
        run(group, batch, workspace)

    watched.engine._model.executor.run = broken  # type: ignore[method-assign]
    batch = batch_of([[*PREFIX, 3], [*PREFIX, 4], [*PREFIX, 5]])
    expected = watched.embed(batch)
    assert watched.has_kept.wait(WAIT_SECONDS)
    np.testing.assert_allclose(watched.embed(batch), expected, atol=1e-6)
    assert max(watched.sizes) == 63
    watched.engine.close()


def test_who_keeps_a_prefix(tiny_folder: Callable[[str], Path]) -> None:
    keeping = [v for v in TINY_VARIANTS if can_keep_prefix(read_model_files(tiny_folder(v)).spec)]
    assert set(KEEPING) <= set(keeping)
    assert not {"bert", "roberta", "gemma2-bidirectional"} & set(keeping)
    spec = fake_spec(modules=(Pooling(modes=("last_token",)),))
    for encoder, is_kept in (
        (replace(spec.encoder, is_causal=True, position_offset=0, pad_token_id=None), True),
        (replace(spec.encoder, is_causal=True, pad_token_id=1, rope=None), False),
        (replace(spec.encoder, is_causal=False), False),
        (replace(spec.encoder, is_causal=True, pad_token_id=None, num_token_types=2), False),
        (replace(spec.encoder, is_causal=True, pad_token_id=None, has_v_norm=True), False),
    ):
        assert can_keep_prefix(replace(spec, encoder=encoder)) == is_kept
    causal = replace(spec, encoder=replace(spec.encoder, is_causal=True, pad_token_id=None))
    for pooling in (
        Pooling(modes=("mean",)),
        Pooling(modes=("cls", "last_token")),
        Pooling(modes=("last_token",), skipped_token_id=0),
    ):
        assert not can_keep_prefix(replace(causal, modules=(pooling,)))


@pytest.mark.parametrize("window", [None, 7, 30])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_kernel_reads_kept_keys_first(
    window: int | None, has_bias: bool, device: torch.device
) -> None:
    shape = AttentionShape(4, 2, 16, 0.25, None, is_causal=True)
    generator = torch.Generator().manual_seed(0)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(device)

    lengths, kept_counts = [3, 40, 1], [150, 9, 0]  # more than a block of keys
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    columns = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    whole = [numbers(sum(pair), columns) for pair in zip(kept_counts, lengths, strict=True)]
    memory = numbers(160, 2 * shape.num_kv_heads * shape.head_dim)
    for rows, kept_count in zip(whole, kept_counts, strict=True):
        rows[:kept_count, -memory.shape[1] :] = memory[:kept_count]
    memory[150:] = torch.nan
    qkv = torch.cat([rows[count:] for rows, count in zip(whole, kept_counts, strict=True)])
    bias = numbers(4, 321) if has_bias else None
    pack = packed_heads(2)
    tile_queries = 16 // pack
    table = tile_table(ends, tile_queries)
    seqs = np.searchsorted(ends, table[:, 3], "right") - 1
    num_kept = np.array(kept_counts, np.int32)[seqs]
    table[:, [2, 4]] += num_kept[:, None]
    # An empty tile, as in recordings.
    tiles = torch.from_numpy(np.pad(table, ((0, 1), (0, 0))).astype(np.int32)).to(device)
    counts = torch.from_numpy(np.pad(num_kept, (0, 1))).to(device)
    outs = []
    for module in (attention_kernel, reference):
        out = torch.zeros(len(qkv), 64, device=device)
        module.attend(
            qkv, qkv, tiles, tile_queries, shape, window, bias, out, Prefix(memory, counts)
        )
        outs.append(out)
    expected = []
    for rows, count in zip(whole, kept_counts, strict=True):
        out = torch.zeros(len(rows), 64, device=device)
        every = torch.from_numpy(tile_table(np.array([0, len(rows)]), tile_queries)).to(device)
        reference.attend(rows, rows, every, tile_queries, shape, window, bias, out)
        expected.append(out[count:])
    for out in outs:
        torch.testing.assert_close(out, torch.cat(expected), atol=1e-4, rtol=1e-4)

"""The memory plan of the CPU engine, and how the process's memory is read."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedlib import Embedder
from embedlib.config import Config
from embedlib.engines import select
from embedlib.engines.kind import ChosenPrecision
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.kind import KIND, lower
from embedlib.engines.openvino.plans import memory
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.plans.memory import (
    LIBRARY_BYTES,
    SHARED_BATCH_TOKENS,
    MemoryNeeds,
    memory_needs,
)
from embedlib.engines.openvino.plans.planning import needs_of
from embedlib.engines.openvino.plans.remedies import remedy
from embedlib.engines.openvino.sizes.operator_sizes import separate_bytes, shared_bytes
from embedlib.engines.openvino.stored import model_cache
from embedlib.engines.precision import NeedsReportError
from embedlib.engines.select import check_room, plan_engine
from embedlib.errors import EngineUnavailableError
from embedlib.fidelity.measure import plan_cpu_reference
from embedlib.fidelity.model import MeasuredModel
from embedlib.models.encoder_parts import Experts
from embedlib.models.known_models import KnownModel
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.spec import LateInteraction, SpladePooling
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles
from embedlib.session.loading import load_model
from embedlib.system.memory import GIB, Memory, Room, gib, read_memory
from embedlib.testing import check_engine
from tests.machines import fake_machine, with_cpu
from tests.waiting import WAIT_SECONDS

MEMINFO = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n"}  # 4 GiB
V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"
HIGH = {f"{V2}/a/memory.high": "3000\n"}
NO_LIMIT = resource.RLIM_INFINITY


def cgroup_v2(path: str, limit: str, used: int, idle: int = 0, read: int = 0) -> dict[str, str]:
    return {
        f"{V2}{path}/memory.max": f"{limit}\n",
        f"{V2}{path}/memory.current": f"{used}\n",
        f"{V2}{path}/memory.stat": f"anon 1\ninactive_file {idle}\nactive_file {read}\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, None, id="nothing is known"),
        pytest.param({"/proc/meminfo": "MemTotal: 9 kB\n"}, None, id="an old kernel"),
        pytest.param(MEMINFO, 4 * GIB, id="machine"),
        pytest.param(
            {**MEMINFO, "/proc/self/cgroup": "0::/a/b\n", **cgroup_v2("/a/b", "max", 1)},
            4 * GIB,
            id="no limit",
        ),
        pytest.param(
            {**MEMINFO, "/proc/self/cgroup": "0::/a/b\n", **cgroup_v2("/a", f"{GIB}", 300, 100)},
            GIB - 200,
            id="limit of a parent",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/a\n", **cgroup_v2("/a", "5000", 4900, 1000, 3000)},
            4100,
            id="full of a model's files that were read before",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/a\n", **cgroup_v2("/a", "max", 100), **HIGH},
            2900,
            id="a limit above which it is slowed down",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/a\n", **cgroup_v2("/a", "5000", 100), **HIGH},
            2900,
            id="a limit below the one that it ends at, above which it is slowed down",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/a\n", **cgroup_v2("/a", "2000", 100), **HIGH},
            1900,
            id="a lower limit below one above which it is slowed down",
        ),
        pytest.param(
            {**MEMINFO, "/proc/self/cgroup": "0::/host/path\n", **cgroup_v2("", "700", 900)},
            0,
            id="a container that sees the host's path, and is full",
        ),
        pytest.param(
            {
                **MEMINFO,
                "/proc/self/cgroup": "7:cpu:/a\n4:memory,x:/a\n",
                f"{V1}/a/memory.limit_in_bytes": "5000\n",
                f"{V1}/a/memory.usage_in_bytes": "4000\n",
                f"{V1}/a/memory.stat": "total_inactive_file 300\ntotal_active_file 200\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}/memory.usage_in_bytes": "1\n",
            },
            1500,
            id="cgroup v1",
        ),
        pytest.param(
            {**MEMINFO, "/proc/self/cgroup": "0::/a\n", f"{V2}/a/memory.max": "5000\n"},
            4 * GIB,
            id="a limit of which the use is not told",
        ),
        pytest.param(
            {
                "/proc/self/cgroup": "4:memory:/\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}/memory.usage_in_bytes": "1\n",
            },
            None,
            id="cgroup v1 without a limit",
        ),
    ],
)
def test_the_room_is_what_the_tightest_limit_leaves(
    files: dict[str, str], expected: int | None
) -> None:
    memory = read_memory(lambda path: files.get(path, ""), lambda: NO_LIMIT)
    assert (memory.room and memory.room.num_bytes) == expected
    assert memory.address_room is None


def test_a_limit_of_addresses_counts_mapped_files_too() -> None:
    files = {**MEMINFO, "/proc/self/status": "VmPeak: 9 kB\nVmSize: 1048576 kB\n"}
    memory = read_memory(lambda path: files.get(path, ""), lambda: 3 * GIB)
    assert memory.address_room == Room(2 * GIB, "limit set by ulimit -v")
    assert memory.too_small(GIB, GIB) is None
    assert memory.too_small(GIB, GIB + 1) is memory.address_room
    told = ("5.0 GiB of address space", "2.0 GiB (limit set by ulimit -v)")
    assert memory.shortage(5 * GIB, 0) == (*told, memory.address_room)
    assert memory.for_each_of(2).too_small(GIB, 1) == Room(GIB, "limit set by ulimit -v")
    assert Memory().too_small(1 << 60, 1 << 60) is None


@pytest.mark.parametrize(
    ("more", "needed", "room"),
    [
        (GIB, "3.0 GiB", "2.0 GiB"),
        (GIB // 30, "2.03 GiB", "2.00 GiB"),
        (1, "2.000000001 GiB", ""),
        (50_000, "2.00005 GiB", "2.00000 GiB"),
    ],
)
def test_a_need_and_what_it_exceeds_are_told_apart(more: int, needed: str, room: str) -> None:
    memory = Memory(Room(2 * GIB, "a test"), Room(9 * GIB, "another"))
    found = memory.shortage(2 * GIB + more, 4 * GIB)
    assert found is not None
    assert found[0] == f"{needed} of memory"
    assert found[1].startswith(room)
    assert found[1].endswith(" GiB (a test)")
    assert found[2] is memory.room
    assert memory.shortage(2 * GIB, 4 * GIB) is None


def test_a_limit_of_data_counts_with_the_memory_of_the_machine() -> None:
    files = {**MEMINFO, "/proc/self/status": "VmPeak: 9 kB\nVmData: 1048576 kB\n"}

    def memory(limit: int) -> Memory:
        return read_memory(lambda path: files.get(path, ""), lambda: NO_LIMIT, lambda: limit)

    assert memory(3 * GIB).room == Room(2 * GIB, "limit set by ulimit -d")
    assert memory(6 * GIB).room == Room(4 * GIB, "available on this machine")
    assert memory(1).room == Room(0, "limit set by ulimit -d")


@pytest.fixture
def files(tiny_folder: Callable[[str], Path]) -> ModelFiles:
    return read_model_files(tiny_folder("bert"))


def at_scale(files: ModelFiles, hidden: int, layers: int) -> ModelFiles:
    """Return the files with a spec of another size; the weights stay small."""
    encoder = replace(
        files.spec.encoder,
        hidden_size=hidden,
        head_dim=hidden // files.spec.encoder.num_heads,
        intermediate_size=4 * hidden,
        num_layers=layers,
        windows=(None,) * layers,
    )
    return replace(files, spec=replace(files.spec, encoder=encoder))


def test_the_plan_counts_packed_copies(
    files: ModelFiles, tiny_folder: Callable[[str], Path]
) -> None:
    config = Config(threads=2)
    big = at_scale(files, 1024, 24)
    exact = memory_needs(big, ChosenPrecision(name="float32"), config)
    coded = memory_needs(big, ChosenPrecision(name="int8"), config)
    assert 1.1 * GIB < exact.weights < 1.2 * GIB
    assert exact.weights < exact.shared < 1.25 * exact.weights + 0.6 * GIB
    assert exact.separate - exact.shared > 0.7 * exact.weights
    # A byte for a weight, and four for the scale of 64.
    assert exact.weights / coded.weights == pytest.approx(4 / (1 + 4 / 64), rel=0.01)
    assert coded.weights < coded.shared - LIBRARY_BYTES < 1.25 * coded.weights + 0.25 * GIB
    kept = ChosenPrecision(name="int8", excluded=tuple(f"layers.{i}.up" for i in range(24)))
    assert coded.weights < memory_needs(big, kept, config).weights < exact.weights
    halves = at_scale(read_model_files(tiny_folder("mistral")), 1024, 24)
    widened = memory_needs(halves, ChosenPrecision(name="float32"), config)
    assert widened.weights < widened.shared < 1.26 * widened.weights + 0.6 * GIB
    for stored in (big, halves):  # packed once, in two bytes, whatever the file stores
        rounded = memory_needs(stored, ChosenPrecision(name="bf16"), config)
        assert rounded.copies == 1
        same = memory_needs(stored, ChosenPrecision(name="float32"), config)
        assert same.packed == 2 * rounded.packed
        assert same.weights - same.packed == rounded.weights - rounded.packed, "tables stay"
    small = at_scale(files, 256, 2)
    coded = memory_needs(small, ChosenPrecision(name="int8"), config)
    assert coded.copies == pytest.approx(2)


@pytest.mark.parametrize(
    ("hidden", "layers", "precision", "is_large", "may_be_separate"),
    [
        pytest.param(384, 6, "float32", False, True, id="MiniLM"),
        pytest.param(768, 12, "float32", True, True, id="BERT-base"),
        pytest.param(384, 6, "bf16", False, True, id="MiniLM, bf16"),
        pytest.param(768, 12, "bf16", True, True, id="BERT-base, bf16"),
        pytest.param(768, 12, "int8", True, True, id="BERT-base, int8"),
        pytest.param(1024, 24, "float32", True, False, id="BERT-large"),
        pytest.param(1024, 24, "bf16", True, False, id="BERT-large, bf16"),
        pytest.param(1024, 24, "int8", True, False, id="BERT-large, int8"),
    ],
)
def test_lanes_share_a_compiled_model_from_some_size_on(
    hidden: int, layers: int, precision: str, is_large: bool, may_be_separate: bool, files: Any
) -> None:
    scaled = at_scale(files, hidden, layers)
    encoder = replace(scaled.spec.encoder, vocab_size=30522)
    scaled = replace(scaled, spec=replace(scaled.spec, encoder=encoder))
    needs = memory_needs(scaled, ChosenPrecision(name=precision), Config(threads=2))
    assert (needs.is_large, needs.may_be_separate) == (is_large, may_be_separate)


def test_the_plan_counts_the_longest_text_and_is_linear_in_its_tokens(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    needs = [
        memory_needs(
            replace(big, spec=replace(big.spec, max_seq_tokens=num_tokens)),
            ChosenPrecision(name="float32"),
            Config(threads=1),
        ).shared
        for num_tokens in (512, 1 << 13, 1 << 14, 1 << 15)
    ]
    steps = np.diff(needs)
    assert (steps > 0).all()
    # In one piece the last step would be four times the one before.
    assert steps[2] == pytest.approx(2 * steps[1], rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("windows", [(None,), (None, 128)], ids=["all", "some in a window"])
def test_the_plan_counts_a_byte_for_each_pair_of_a_causal_mask(
    windows: tuple[int | None, ...], precision: str, files: ModelFiles
) -> None:
    num_tokens = 1 << 14
    big = at_scale(files, 1024, 24)
    encoder = replace(big.spec.encoder, windows=windows * (24 // len(windows)))
    needs = [
        memory_needs(
            replace(
                big,
                spec=replace(
                    big.spec,
                    max_seq_tokens=num_tokens,
                    encoder=replace(encoder, is_causal=is_causal, attention_cap=cap),
                ),
            ),
            ChosenPrecision(name=precision),
            Config(threads=1),
        ).shared
        for is_causal, cap in ((False, None), (True, None), (True, 50.0))
    ]
    assert needs[1] - needs[0] >= num_tokens**2
    if precision == "bf16":
        assert needs[2] > 16 * encoder.num_heads * num_tokens**2, "all scores are in memory"


@pytest.mark.parametrize(
    ("name", "hidden", "precision", "in_shared", "in_separate"),
    [
        ("LIBRARY_BYTES", 1024, "float32", 1, 1),
        ("CACHE_BYTES", 256, "float32", 1, 1),
        ("CACHE_BYTES", 1024, "float32", 0, 0),
        ("TABLE_BYTES", 1024, "float32", 1, 1),
        ("TABLE_BYTES", 256, "float32", 0, 0),
        ("LANE_BYTES", 1024, "int8", 0, 24),
        ("LANE_BYTES", 1024, "float32", 0, 0),
    ],
)
def test_what_a_number_of_the_plan_counts_for(
    name: str,
    hidden: int,
    precision: str,
    in_shared: int,
    in_separate: int,
    files: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    big = at_scale(files, hidden, 24 if hidden == 1024 else 2)
    encoder = replace(big.spec.encoder, vocab_size=30522)
    big = replace(big, spec=replace(big.spec, encoder=encoder))

    def needs() -> MemoryNeeds:
        return memory_needs(big, ChosenPrecision(name=precision), Config(threads=2))

    before, more = needs(), 1 << 20
    monkeypatch.setattr(memory, name, getattr(memory, name) + more)
    assert needs().shared - before.shared == in_shared * more
    assert needs().separate - before.separate == in_separate * more
    monkeypatch.setattr(memory, "max_kept_bytes", lambda *_, **__: more)
    assert needs().shared - before.shared == (in_shared + 1) * more, "and kept prefixes"


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("bf16", 2)])
def test_the_plan_counts_the_head_of_a_sparse_model_as_a_matrix(
    precision: str, size: int, files: ModelFiles
) -> None:
    big = at_scale(files, 1024, 24)
    splade = SpladePooling(vocab_size=50_000)
    dense, sparse = (
        memory_needs(
            replace(big, spec=replace(big.spec, modules=modules, embedding_dim=50_000)),
            ChosenPrecision(name=precision),
            Config(threads=1),
        )
        for modules in ((), (splade,))
    )
    more = size * 50_000 * 1024
    assert sparse.weights - dense.weights == sparse.packed - dense.packed == more
    copies = memory.MLAS_COPIES if precision == "float32" else 1
    assert sparse.shared - dense.shared == pytest.approx(copies * more, rel=0.02)


def data_bytes(needs: MemoryNeeds) -> int:
    """What one compiled model takes without the pages of mapped files and without batches."""
    tables = min(needs.weights - needs.packed, memory.TABLE_BYTES)
    return LIBRARY_BYTES + round(needs.copies * needs.packed) + tables


@pytest.mark.parametrize(
    ("variant", "hidden", "layers", "precision", "pages"),
    [
        pytest.param("bert", 1024, 24, "float32", memory.MAPPED_BYTES, id="small layers"),
        pytest.param("bert", 4096, 2, "float32", 12 * 4096**2 * 4, id="a layer, which is a stage"),
        pytest.param("mistral", 4096, 2, "float32", memory.MAPPED_BYTES, id="packed at first use"),
        pytest.param("bert", 1024, 24, "int8", memory.MAPPED_BYTES, id="int8"),
        pytest.param("bert", 1024, 24, "bf16", 2 * memory.MAPPED_BYTES, id="read in four bytes"),
        pytest.param("mistral", 1024, 24, "bf16", memory.MAPPED_BYTES, id="read in two bytes"),
    ],
)
def test_the_plan_counts_pages_of_mapped_files_or_batches(
    variant: str,
    hidden: int,
    layers: int,
    precision: str,
    pages: int,
    tiny_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory.Machine, "cpu_features", lambda _: frozenset())  # copies no columns
    monkeypatch.setattr(memory, "shared_bytes", lambda _: 0)
    big = at_scale(read_model_files(tiny_folder(variant)), hidden, layers)
    short = replace(big, spec=replace(big.spec, max_seq_tokens=8))
    config = Config(threads=1, max_batch_tokens=8)
    needs = memory_needs(short, ChosenPrecision(name=precision), config)
    assert needs.is_large
    assert needs.shared - data_bytes(needs) == pages
    assert needs.files == 2 * needs.weights + memory.LIBRARY_ADDRESSES


def batch_bytes(files: ModelFiles, num_tokens: int, longest: int) -> int:
    """What a batch of texts of up to 1,024 tokens takes: rows, and scores of all heads."""
    encoder = files.spec.encoder
    rows = num_tokens * (memory.LIVE_ROWS * encoder.hidden_size + 2 * encoder.intermediate_size)
    return 4 * (rows + encoder.num_heads * longest**2 * -(-num_tokens // longest))


@pytest.mark.parametrize(("precision", "num_stages"), [("float32", 24), ("int8", 8), ("bf16", 8)])
@pytest.mark.parametrize("longest", [64, 1024])
@pytest.mark.parametrize(("num_tokens", "num_kept"), [(128, 128), (256, 256), (2048, 256)])
def test_the_plan_counts_batches_and_what_stages_keep_of_short_ones(
    num_tokens: int,
    num_kept: int,
    longest: int,
    precision: str,
    num_stages: int,
    files: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory.Machine, "cpu_features", lambda _: frozenset())  # copies no columns
    monkeypatch.setattr(memory, "MAPPED_BYTES", 0)
    big = at_scale(files, 1024, 24)
    big = replace(big, spec=replace(big.spec, max_seq_tokens=longest))
    config = Config(threads=8, max_batch_tokens=num_tokens)
    needs = memory_needs(big, ChosenPrecision(name=precision), config)
    batch = batch_bytes(big, max(num_tokens, longest), longest)
    kept = (num_stages - 1) * batch_bytes(big, num_kept, min(longest, num_kept))
    assert needs.shared - data_bytes(needs) == batch + kept + shared_bytes(num_stages)
    twice = data_bytes(needs) + round(needs.copies * needs.packed)
    assert needs.separate - twice - needs.second == (1 + 8) * batch + separate_bytes(8)


def test_the_plan_of_a_small_model_counts_pages_and_batches_and_the_cache(
    files: ModelFiles,
) -> None:
    small = at_scale(files, 256, 2)
    config = Config(threads=3, max_batch_tokens=128)
    needs = memory_needs(small, ChosenPrecision(name="float32"), config)
    longest = small.spec.max_seq_tokens
    assert needs.copies == 2
    once = data_bytes(needs) + memory.CACHE_BYTES + needs.packed  # all of its pages
    batch = batch_bytes(small, 128, longest)
    assert needs.shared - once == batch + shared_bytes(2)
    assert needs.separate - once - 2 * needs.packed == (1 + 3) * batch + separate_bytes(3)


@pytest.mark.parametrize(("hidden", "num_tokens"), [(1024, 1 << 16), (1024, 64), (4096, 64)])
def test_the_plan_of_one_layer_at_a_time(hidden: int, num_tokens: int, files: ModelFiles) -> None:
    big = at_scale(files, hidden, 24)
    longest = 1000
    big = replace(big, spec=replace(big.spec, max_seq_tokens=longest))
    needs = memory.layerwise_needs(big, Config(threads=3, max_batch_tokens=num_tokens))
    shapes = encoder_shapes(big.spec.encoder).items()
    layer = sum(4 * math.prod(shape) for role, shape in shapes if role.startswith("layers.0."))
    tables = 4 * sum(math.prod(shape) for role, shape in shapes if not role.startswith("layers."))
    most_tokens = max(num_tokens, longest)
    batch = batch_bytes(big, most_tokens, longest)
    rows = 4 * hidden * max(memory.MAX_TOGETHER_TOKENS, most_tokens)
    packed, read = int(memory.MLAS_COPIES * layer), max(layer, memory.MAPPED_BYTES)
    assert needs.shared == LIBRARY_BYTES + packed + read + tables + batch + rows
    assert needs.separate == needs.shared


def test_the_plan_counts_a_second_model_of_mostly_float32_as_one_of_mlas(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        memory.Machine, "cpu_features", lambda _: frozenset()
    )  # the rest is float32
    big = at_scale(files, 1024, 24)
    roles = tuple(
        role for role in linear_roles(big.spec.encoder) if not role.startswith("layers.0.")
    )
    for excluded, layers in ((roles, 0), (roles[:9], 24)):
        precision = ChosenPrecision(name="int8", excluded=excluded)
        second = memory_needs(big, precision, Config(threads=2)).second
        assert second == layers * memory.LANE_BYTES


@pytest.mark.parametrize(
    ("num_parameters", "precision", "data"),
    [
        (10**9, "float32", int(memory.MLAS_COPIES * 4 * 10**9) + memory.MAPPED_BYTES),
        (10**9, "bf16", 2 * 10**9 + memory.MAPPED_BYTES),
        (10**9, "int8", 10**9 * 17 // 16 + memory.MAPPED_BYTES),
        (10**6, "float32", (2 + 1) * 4 * 10**6),
    ],
)
def test_what_a_model_takes_of_which_only_the_size_is_known(
    num_parameters: int, precision: str, data: int
) -> None:
    assert memory.most_bytes(num_parameters, precision) == LIBRARY_BYTES + data


@pytest.mark.parametrize(
    ("rows", "is_stored_so"), [((9,), False), ((9, 4), True), ((None, 4), False)]
)
def test_matrices_in_16_bits_are_told_from_biases_and_tables(
    rows: tuple[int | None, ...], is_stored_so: bool, files: ModelFiles, tmp_path: Path
) -> None:
    shape = [files.spec.encoder.vocab_size if number is None else number for number in rows]
    save_file({"a": np.zeros(shape, np.float16)}, tmp_path / "model.safetensors")
    assert memory.stores_16_bits(files, tmp_path) is is_stored_so
    (tmp_path / "model.safetensors").write_bytes(b"no file of this kind")
    assert not memory.stores_16_bits(files, tmp_path), "who loads it tells what is wrong"


@pytest.mark.parametrize(
    ("name", "precision", "cap", "window", "num_bytes"),
    [
        pytest.param("BLOCK_ROWS", "float32", 50.0, None, 4 * 4096 * 1024, id="in blocks"),
        pytest.param("BLOCK_ROWS", "float32", None, 128, 4 * 4096 * 1024, id="a window"),
        pytest.param("BLOCK_ROWS", "float32", None, None, 0, id="not in blocks"),
        pytest.param("LONG_ROWS", "float32", None, None, 4 * 4096 * 1024, id="in one piece"),
        pytest.param("LONG_ROWS", "bf16", 50.0, None, 0, id="all scores"),
        pytest.param("WINDOW_BYTES", "bf16", None, 128, 4096**2, id="the mask of a window"),
        pytest.param("WINDOW_BYTES", "bf16", None, 4096, 0, id="a window of all"),
    ],
)
def test_what_a_number_of_the_plan_counts_for_in_long_texts(
    name: str,
    precision: str,
    cap: float | None,
    window: int | None,
    num_bytes: int,
    files: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory.Machine, "cpu_features", lambda _: frozenset({"avx2"}))
    big = at_scale(files, 1024, 24)
    encoder = replace(big.spec.encoder, attention_cap=cap, windows=(None, window) * 12)
    long = replace(big, spec=replace(big.spec, max_seq_tokens=4096, encoder=encoder))

    def shared() -> int:
        return memory_needs(long, ChosenPrecision(name=precision), Config(threads=1)).shared

    before = shared()
    monkeypatch.setattr(memory, name, getattr(memory, name) + 1)
    assert shared() - before == num_bytes


@pytest.mark.parametrize(
    ("cap", "window", "num_bytes"),
    [
        pytest.param(50.0, 128, 0, id="all in blocks"),
        pytest.param(None, 128, 4096**2, id="some in blocks"),
        pytest.param(None, None, 4096**2, id="none in blocks"),
    ],
)
def test_the_plan_counts_the_mask_of_a_causal_model_where_it_is_made_whole(
    cap: float | None,
    window: int | None,
    num_bytes: int,
    files: ModelFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory.Machine, "cpu_features", lambda _: frozenset({"avx2"}))
    big = at_scale(files, 1024, 24)
    encoder = replace(big.spec.encoder, attention_cap=cap, windows=(None, window) * 12)
    found = [
        memory_needs(
            replace(big, spec=replace(big.spec, max_seq_tokens=4096, encoder=one)),
            ChosenPrecision(name="float32"),
            Config(threads=1),
        ).shared
        for one in (encoder, replace(encoder, is_causal=True))
    ]
    assert found[1] - found[0] == num_bytes


def test_the_plan_counts_experts_as_matrices(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    encoder = replace(big.spec.encoder, experts=Experts(count=4, num_chosen=2, layers=(1,)))
    with_experts = replace(big, spec=replace(big.spec, encoder=encoder))
    plain, chosen = (
        memory_needs(one, ChosenPrecision(name="float32"), Config(threads=1))
        for one in (big, with_experts)
    )
    matrices = 2 * encoder.hidden_size * encoder.intermediate_size
    router = 4 * encoder.hidden_size
    assert chosen.packed - plain.packed == 4 * (3 * matrices + router)
    assert chosen.weights - chosen.packed == pytest.approx(plain.weights - plain.packed, rel=0.01)


def test_a_batch_of_short_texts_takes_what_its_tokens_take(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    short = replace(big, spec=replace(big.spec, max_seq_tokens=64))
    float32 = ChosenPrecision(name="float32")
    by_budget = [
        memory_needs(short, float32, Config(threads=1, max_batch_tokens=num_tokens)).shared
        for num_tokens in (1 << 14, 1 << 15)
    ]
    assert by_budget[1] - by_budget[0] > 4 * (1 << 14) * big.spec.encoder.hidden_size


@pytest.mark.parametrize(
    ("hidden", "precision", "is_kept"),
    [(1024, "int8", True), (4096, "int8", False), (4096, "bf16", True)],
)
def test_int8_matrices_that_would_fill_the_disk_are_not_kept_with_a_graph(
    hidden: int, precision: str, is_kept: bool, files: ModelFiles, tmp_path: Path
) -> None:
    big = at_scale(files, hidden, 24)
    config = Config(engine_cache_dir=tmp_path)
    machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {64 << 20} kB\n"})
    plan = plan_engine(big, config, machine=machine)
    plan = replace(plan, precision=ChosenPrecision(name=precision), needs=None)
    needs = needs_of(plan, big, config)
    place, weights = tmp_path / "openvino", load_weights(files)
    cache = model_cache(
        *(place, big, weights, plan.precision, needs, config), is_narrow=False, shares_lanes=True
    )
    assert (cache is not None) is is_kept


def test_a_shorter_limit_that_fits_is_told(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    long = replace(big, spec=replace(big.spec, max_seq_tokens=1 << 15))
    for num_bytes, told in (
        (
            9 * GIB // 2,
            r"; precision='int8' needs about \d.\d GiB, max_seq_tokens=16384 needs about",
        ),
        (9 * GIB // 4, r"; max_seq_tokens=\d+ needs about (1\.\d|2\.[0-2]) GiB"),
        (1 * GIB, r"; precision='int8' with max_seq_tokens=\d+ needs about [01]\.\d GiB"),
    ):
        machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {num_bytes // 1024} kB\n"})
        with pytest.raises(EngineUnavailableError, match=told):
            plan_engine(long, Config(threads=2), machine=machine)


def test_no_limit_is_told_that_is_shorter_than_a_batch(files: ModelFiles) -> None:
    big, config = at_scale(files, 1024, 24), Config(threads=2, max_batch_tokens=64)
    long = replace(big, spec=replace(big.spec, max_seq_tokens=1 << 15))
    int8 = ChosenPrecision(name="int8")
    for num_tokens, told in ((512, "max_seq_tokens=512 needs"), (256, "no precision needs less")):
        short = replace(big, spec=replace(big.spec, max_seq_tokens=num_tokens))
        room = Room(memory_needs(short, int8, config).shared, "a test")
        assert remedy(long, config, int8, Memory(room), room).startswith(told)


def test_a_sparse_or_late_interaction_model_is_told_of_no_other_precision(
    files: ModelFiles,
) -> None:
    big = at_scale(files, 1024, 24)
    machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {GIB // 1024} kB\n"})
    sparse = SpladePooling(vocab_size=big.spec.encoder.vocab_size)
    late = LateInteraction(query_tokens=8, document_tokens=16, expansion=None)
    for one in (
        replace(big, spec=replace(big.spec, modules=(sparse,))),
        replace(big, spec=replace(big.spec, modules=(), late_interaction=late)),
    ):
        told = r"in float32, .*\); no precision needs less; use a machine with more memory, or use"
        with pytest.raises(EngineUnavailableError, match=told):
            plan_engine(one, Config(threads=2, precision="float32"), machine=machine)


def test_a_sparse_model_has_room_where_float32_fits(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    splade = SpladePooling(vocab_size=big.spec.encoder.vocab_size)
    sparse = replace(big, spec=replace(big.spec, modules=(splade,)))
    machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {5 * GIB // 4096} kB\n"})
    check_room(big, Config(threads=2), machine)  # int8 fits
    with pytest.raises(EngineUnavailableError, match=r"in float32, and this process can have 1\.2"):
        check_room(sparse, Config(threads=2), machine)
    fast = with_cpu(fake_machine(), "avx512_vnni")
    assert plan_engine(big, Config(threads=2), machine=fast).tried[-2:] == ("int8", "float32")
    assert plan_engine(sparse, Config(threads=2), machine=fast).tried == ("float32",)
    smaller = fake_machine(files={"/proc/meminfo": "MemAvailable: 9 kB\n"})
    with pytest.raises(EngineUnavailableError, match=r"in float32, and this process can have"):
        check_room(big, Config(threads=2), smaller)


@pytest.mark.parametrize(
    ("precision", "tried", "is_told"),
    [
        ("float32", ("int8", "float32"), True),
        ("float32", ("float32",), False),
        ("int8", ("int8", "float32"), False),
    ],
)
def test_a_report_helps_where_the_last_of_some_precisions_has_no_room(
    precision: str, tried: tuple[str, ...], is_told: bool, files: ModelFiles
) -> None:
    config = Config(threads=2)
    plan = replace(
        plan_engine(files, config, machine=fake_machine(files={})),
        precision=ChosenPrecision(name=precision),
        tried=tried,
        memory=Memory(Room(1, "a test")),
    )
    with pytest.raises(EngineUnavailableError) as caught:
        select._checked(plan, files, config)
    assert isinstance(caught.value, NeedsReportError) is is_told


def test_a_limit_of_addresses_is_compared_with_addresses(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    machine = replace(fake_machine(files=MEMINFO), address_limit=lambda: 3 * GIB)
    message = r"about [4-9]\.\d GiB of address space in float32, and .* 3\.0 GiB \(limit set by ul"
    with pytest.raises(EngineUnavailableError, match=message):
        plan_engine(big, Config(threads=2, precision="float32"), machine=machine)
    machine = replace(machine, address_limit=lambda: GIB)
    least = (
        r"1\.0 GiB \(limit set by .*; precision='int8' needs about [2-9]\.\d GiB, the least; "
        "raise that limit, or use a smaller model"
    )
    with pytest.raises(EngineUnavailableError, match=least):
        plan_engine(big, Config(threads=2, precision="float32"), machine=machine)


def test_what_does_not_fit_is_refused_with_what_would(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {5 * GIB // 4096} kB\n"})
    message = (
        rf"engine openvino: {big.folder} needs about 2\.\d GiB of memory in float32, and this "
        r"process can have 1\.2 GiB \(available on this machine\); precision='int8' needs about "
        r"0\.\d GiB"
    )
    with pytest.raises(EngineUnavailableError, match=message):
        plan_engine(big, Config(threads=2), machine=machine)
    plan_engine(big, Config(threads=2, precision="int8"), machine=machine)
    smaller = fake_machine(files={"/proc/meminfo": "MemAvailable: 9 kB\n"})
    for precision, least in (
        ("float32", r"precision='int8' needs about 0\.\d GiB, the least"),
        ("int8", r"no precision needs less"),
    ):
        message = rf"; {least}; use a machine with more memory, or use a smaller model"
        config = Config(threads=2, precision=precision)  # type: ignore[arg-type]
        with pytest.raises(EngineUnavailableError, match=message):
            plan_engine(big, config, machine=smaller)


def test_a_token_budget_that_takes_the_memory_is_told(files: ModelFiles) -> None:
    machine = fake_machine(files=MEMINFO)
    plan_engine(files, Config(threads=2), machine=machine)
    message = (
        r"4\.0 GiB \(available.*\); without max_batch_tokens=100000000 it needs about 0\.\d GiB$"
    )
    with pytest.raises(EngineUnavailableError, match=message):
        plan_engine(files, Config(threads=2, max_batch_tokens=100_000_000), machine=machine)
    big = at_scale(files, 1024, 24)  # does not fit without it, too
    smaller = fake_machine(files={"/proc/meminfo": f"MemAvailable: {5 * GIB // 4096} kB\n"})
    with pytest.raises(EngineUnavailableError, match=r"GiB \(.*\); precision='int8' needs"):
        plan_engine(big, Config(threads=2, max_batch_tokens=1024), machine=smaller)


def test_lanes_share_a_compiled_model_where_two_do_not_fit(
    tiny_folder: Callable[[str], Path], engine_cache: Path
) -> None:
    folder = tiny_folder("bert")
    config = Config(threads=2, engine_cache_dir=engine_cache)
    needs = memory_needs(read_model_files(folder), ChosenPrecision(name="float32"), config)
    for num_bytes, budget in ((needs.shared + 2048, SHARED_BATCH_TOKENS), (9 * GIB, 512)):
        machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {num_bytes // 1024} kB\n"})
        model = load_model(folder, config, machine=machine)
        try:
            assert model.engine.limits.max_batch_tokens == budget
        finally:
            model.engine.close()


def test_a_load_asks_once_how_much_memory_a_model_needs(
    tiny_folder: Callable[[str], Path], engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def note(
        files: ModelFiles, precision: ChosenPrecision, config: Config, *, is_widened: bool
    ) -> MemoryNeeds:
        asked.append(precision.name)
        return memory_needs(files, precision, config, is_widened=is_widened)

    monkeypatch.setattr(memory, "memory_needs", note)
    config = Config(threads=2, precision="float32", engine_cache_dir=engine_cache)
    machine = fake_machine(files=MEMINFO)
    load_model(tiny_folder("bert"), config, machine=machine).engine.close()
    assert asked == ["float32"]


def test_an_estimate_of_another_precision_is_not_taken(files: ModelFiles) -> None:
    big = at_scale(files, 1024, 24)
    plan = plan_engine(big, Config(threads=2), machine=fake_machine(files={}))
    for name in ("float32", "int8"):
        planned = replace(plan, precision=ChosenPrecision(name=name))
        expected = memory_needs(big, planned.precision, Config(threads=2))
        told = KIND.describe_memory(planned, big, Config(threads=2))  # type: ignore[misc]
        assert f"for {gib(expected.weights)} of weights" in told


def test_an_engine_from_weights_in_memory_is_laid_out_as_planned(files: ModelFiles) -> None:
    plan = plan_engine(files, Config(threads=2), machine=fake_machine(files={}))
    needs = plan.needs
    assert isinstance(needs, MemoryNeeds)
    tight = Memory(Room(needs.shared, "a test"))
    for memory_left, shares_lanes in ((Memory(), False), (tight, True)):
        planned = replace(plan, memory=memory_left)
        engine = lower(files.spec, load_weights(files), planned, Config(threads=2))
        assert (engine.limits.num_parallel_batches == 1) is shares_lanes
        engine.close()


def test_the_reference_of_a_measurement_is_refused_where_it_does_not_fit(
    files: ModelFiles,
) -> None:
    model = MeasuredModel(files=at_scale(files, 1024, 24), known=KnownModel(), config=Config())
    machine = fake_machine(files={"/proc/meminfo": "MemAvailable: 9 kB\n"})
    message = r"needs about 0\.\d GiB .* one layer at a time, .*; use a machine with more memory"
    with pytest.raises(EngineUnavailableError, match=message):
        plan_cpu_reference(model, machine)


def test_the_reference_is_computed_layer_by_layer_where_only_that_fits(files: ModelFiles) -> None:
    big = at_scale(files, 4096, 32)
    model = MeasuredModel(files=big, known=KnownModel(), config=Config(), longest_tokens=512)
    for num_bytes, is_by_layer in ((64 * GIB, False), (4 * GIB, True)):
        machine = fake_machine(files={"/proc/meminfo": f"MemAvailable: {num_bytes // 1024} kB\n"})
        plan = plan_cpu_reference(model, machine)
        assert plan.is_by_layer is is_by_layer
        assert isinstance(plan.needs, MemoryNeeds)
        assert (plan.needs.shared < 3 * GIB) is is_by_layer
    half = replace(model, memory_share=2)
    message = (
        r"needs about 2\.\d GiB of memory in float32 with one layer at a time, and this .* 2\.0"
    )
    with pytest.raises(EngineUnavailableError, match=message):
        plan_cpu_reference(half, machine)


def test_an_engine_with_shared_lanes_keeps_the_promises_of_an_engine(files: ModelFiles) -> None:
    engine: Any = OpenVINOEngine(
        files.spec, load_weights(files), Layout(threads=2, shares_lanes=True)
    )
    assert engine.limits.num_parallel_batches == 1
    check_engine(engine, files.spec)


LOADS = """
import resource, sys
resource.setrlimit(getattr(resource, sys.argv[4]), (int(sys.argv[2]),) * 2)
from embedlib import Embedder
from embedlib.errors import EmbedlibError
try:
    with Embedder(sys.argv[1], threads=2, engine_cache_dir=sys.argv[3]) as embedder:
        print(embedder.encode("a text").shape)
        # Not ru_maxrss, which a process has from the one that started it.
        status = open("/proc/self/status").read()
        print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
except EmbedlibError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("gib", "limit", "expected"),
    [
        (1.2, "RLIMIT_AS", "EngineUnavailableError: engine openvino: "),
        (12.0, "RLIMIT_AS", "(32,)"),
        (0.2, "RLIMIT_DATA", "EngineUnavailableError: engine openvino: "),
        (12.0, "RLIMIT_DATA", "(32,)"),
    ],
)
def test_a_load_under_a_limit_of_memory_ends_in_vectors_or_in_one_line(
    gib: float, limit: str, expected: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = [str(tiny_folder("bert")), str(int(gib * GIB)), str(tmp_path), limit]
    done = subprocess.run(
        [sys.executable, "-c", LOADS, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(expected)
    assert done.stdout.count("\n") == 1
    if expected.startswith("("):
        files = read_model_files(tiny_folder("bert"))
        needs = memory_needs(files, ChosenPrecision(name="float32"), Config(threads=2))
        assert 1024 * int(done.stderr.split()[-1]) < needs.separate, "the plan is an upper bound"


def test_the_vectors_are_the_same_with_shared_lanes(files: ModelFiles) -> None:
    texts = ["a b c", "d", "e f g h a b c d"] * 40
    rows = []
    for shares_lanes in (False, True):
        engine = OpenVINOEngine(
            files.spec, load_weights(files), Layout(threads=2, shares_lanes=shares_lanes)
        )
        with Embedder.from_engine(engine, files.spec, load_tokenizer(files)) as embedder:
            rows.append(embedder.encode(texts))
    np.testing.assert_allclose(rows[0], rows[1], atol=2e-6)

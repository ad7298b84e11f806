"""How a program ends, and what a fork does: each case in a process of its own.

A hang is the failure looked for, so every process has a time limit; nothing else is timed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[2]

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""`run` of conftest.py."""

SIGNALS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & ignores it
"""
WAITING = """
import time, traceback
def waits_for_the_batch():  # as the end of the program does
    stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
    return any(
        frame.filename.endswith("closing.py") and frame.line.startswith("thread.join(")
        for frame in stack
    )
"""
FAKE = """
import os, signal, sys, threading
import numpy as np
from embedlib import Embedder
from embedlib.errors import ClosedError
from embedlib.testing import FakeEngine, fake_embedder, fake_vector
engine = FakeEngine()
embedder = fake_embedder(engine)
"""
REAL = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
from embedlib import Embedder
from embedlib.errors import ClosedError
embedder = Embedder(sys.argv[1], engine_cache_dir=Path(sys.argv[1]) / "cache")
embedder.encode(["a river", "a city"] * 50)
"""
FORK = """
before = embedder.encode("hello")
child = os.fork()
if child == 0:
    for call in (
        lambda: embedder.encode("hello"),
        lambda: embedder.encode(["hello"]),
        lambda: embedder.encode([]),
        lambda: embedder.submit("hello"),
        lambda: next(embedder.encode_stream(["hello"])),
    ):
        try:
            call()
        except ClosedError as error:
            assert "forked child" in str(error), error
        else:
            os._exit(3)
    embedder.close()
    leave(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert (embedder.encode("hello") == before).all()
print("parent is fine")
"""
LEAVES = {"sys.exit": "leave = sys.exit", "os._exit": "leave = os._exit"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from embedlib.testing import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("model"), "bert")


def run_alone(
    program: str, argument: object = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that has imported nothing; a hang raises TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(argument)],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        cwd=ROOT,
        env=(environment or dict(os.environ)) | {"PYTHONPATH": str(ROOT)},
    )


def check(result: subprocess.CompletedProcess[str], output: str) -> None:
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, output, "")


ENDINGS = {
    "idle": "embedder.encode('a')",
    "while a daemon thread encodes": """
        engine.hold()
        def work():
            try:
                embedder.encode(["a" * 30] * 10_000)
            except ClosedError:
                pass
        threading.Thread(target=work, daemon=True).start()
        engine.wait_submitted(2)
        engine.release()
    """,
    "with submitted texts nobody waits for": """
        futures = [embedder.submit("a" * 30) for _ in range(2000)]
    """,
    "in the middle of a stream": """
        stream = embedder.encode_stream("a" for _ in range(10**9))
        next(stream)
    """,
    "two of them": """
        other = fake_embedder()
        assert (embedder.encode("a") == other.encode("a")).all()
        other.close()
        assert (embedder.encode("a") == fake_vector([97])).all()
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_without_close(run: Run, ending: str) -> None:
    check(run(FAKE, ENDINGS[ending], "print('end')"), "end")


def test_a_program_with_a_real_model_ends_while_it_computes(run: Run, model: Path) -> None:
    program = """
    started = threading.Event()
    def texts():
        for _ in range(100_000):
            started.set()
            yield "a river runs through a large city " * 3
    def work():
        try:
            for _ in embedder.encode_stream(texts()):
                pass
        except ClosedError:
            pass
    import warnings
    warnings.simplefilter("ignore")
    threading.Thread(target=work, daemon=True).start()
    started.wait()
    other = Embedder(sys.argv[1])
    futures = [other.submit("a river") for _ in range(50)]
    print("end")
    """
    check(run(REAL, program, argument=model), "end")


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("kind", ["fake", "real"])
def test_a_forked_child_is_told_and_ends(run: Run, kind: str, leave: str, model: Path) -> None:
    start = FAKE if kind == "fake" else REAL
    check(run(start, LEAVES[leave], FORK, argument=model), "parent is fine")


def test_multiprocessing_with_fork(run: Run, model: Path) -> None:
    program = """
    import multiprocessing
    def work(queue):
        try:
            embedder.encode("a")
        except ClosedError as error:
            queue.put(str(error))
        mine = Embedder(sys.argv[1])
        queue.put(mine.encode("a").shape)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    assert "forked child" in queue.get()
    print(queue.get())
    process.join()
    assert process.exitcode == 0
    """
    # A child made by fork may not use a device its parent holds; OpenVINO in a fresh Embedder works
    # as long as the parent has not loaded it.
    check(run(FAKE, program, argument=model), "(32,)")


@pytest.mark.parametrize("before", ["", "embedder.close()"])
def test_a_fork_of_a_process_that_loaded_openvino_cannot_load_it(
    run: Run, model: Path, before: str
) -> None:
    """It hung there, and after a `close` the child died of a signal at its own one."""
    program = """
    child = os.fork()
    if child == 0:
        try:
            Embedder(sys.argv[1])
        except EngineUnavailableError as error:
            print(error, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(f"loaded in process {os.getpid()}, and would hang or crash in its forked child {child};")
    """
    imported = "from embedlib.errors import EngineUnavailableError\n"
    result = run(REAL, imported + before, program, argument=model)
    told, expected = result.stdout.splitlines()
    assert expected in told, result
    assert result.returncode == 0, result


def test_ctrl_c_ends_a_long_encode(run: Run) -> None:
    program = """
    def interrupt():
        engine.wait_submitted(2)
        os.kill(os.getpid(), signal.SIGINT)
        engine.release()
    engine.hold()
    threading.Thread(target=interrupt, daemon=True).start()
    embedder.encode(["a" * 30] * 200_000)
    """
    result = run(SIGNALS, FAKE, program)
    assert result.returncode == -signal.SIGINT
    assert result.stderr.strip().endswith("KeyboardInterrupt")
    assert result.stderr.count("Traceback") == 1


def test_ctrl_c_drops_what_was_not_computed_yet(run: Run) -> None:
    program = """
    def interrupt():
        engine.wait_submitted(2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    engine.hold()
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        embedder.encode(["b" * 30] * 500)
    except KeyboardInterrupt:
        other.join()
        engine.release()
    assert (embedder.encode("after") == fake_vector(b"after")).all()
    assert embedder._pipeline._meter._num_jobs == 0
    print(len(engine.batches) <= 3)
    """
    check(run(SIGNALS, FAKE, program), "True")


def test_ctrl_c_ends_a_long_encode_of_a_real_model(run: Run, model: Path) -> None:
    program = """
    import warnings
    warnings.simplefilter("ignore")
    def interrupt():
        while embedder.stats().num_batches < 10:
            pass
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    embedder.encode(["a river runs through a large city " * 3] * 2_000_000)
    """
    result = run(SIGNALS, REAL, program, argument=model)
    assert result.returncode == -signal.SIGINT
    assert result.stderr.strip().endswith("KeyboardInterrupt")


def test_the_second_ctrl_c_does_not_give_up_a_batch_that_soon_ends(run: Run) -> None:
    program = """
    def interrupt():
        engine.wait_submitted(2)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(2):
            while not waits_for_the_batch():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        engine.release()
    close = engine.close
    def tell():
        close()
        os.write(1, b"closed")
    engine.close = tell
    engine.hold()
    threading.Thread(target=interrupt, daemon=True).start()
    embedder.encode(["a" * 30] * 200_000)
    """
    result = run(SIGNALS, FAKE, WAITING, program)
    assert result.returncode == -signal.SIGINT
    assert result.stdout == "closed"


def test_ctrl_c_twice_ends_without_a_word_about_the_end(run: Run) -> None:
    program = """
    from embedlib.session import ending
    ending.INTERRUPTED_SECONDS = 0.3
    def interrupt():
        engine.wait_submitted(2)
        os.kill(os.getpid(), signal.SIGINT)
        while not waits_for_the_batch():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    engine.hold()  # for ever: nothing but the second Ctrl-C ends that, after INTERRUPTED_SECONDS
    threading.Thread(target=interrupt, daemon=True).start()
    embedder.encode(["a" * 30] * 200_000)
    """
    result = run(SIGNALS, FAKE, WAITING, program)
    assert result.returncode == -signal.SIGINT
    assert result.stderr.strip().endswith("KeyboardInterrupt")
    assert result.stderr.count("Traceback") == 1


INTERRUPTED = {
    "submit": ("pipeline._manager", "_accept"),
    "submit_batch": ("pipeline._tokenizer_thread", "_queued"),
    "stats": ("pipeline._meter", "_advance"),
}


@pytest.mark.parametrize("call", INTERRUPTED)
def test_a_signal_may_close_what_it_interrupts(run: Run, call: str) -> None:
    # Inside a lock that the threads need before they can end.
    owner, name = INTERRUPTED[call]
    program = f"""
    class Interrupting:
        def __init__(self, original):
            self.original = original
        def __call__(self, *arguments):
            signal.raise_signal(signal.SIGTERM)
            return self.original(*arguments)
        def append(self, item):
            signal.raise_signal(signal.SIGTERM)
            self.original.append(item)
        def __getattr__(self, name):
            return getattr(self.original, name)
        def __len__(self):
            return len(self.original)
        def __iter__(self):
            return iter(self.original)
    signal.signal(signal.SIGTERM, lambda *_: embedder.close())
    engine.hold()
    waits = embedder.submit("a")
    engine.wait_submitted(1)
    threading.Timer(0.1, engine.release).start()
    owner = embedder._{owner}
    owner.{name} = Interrupting(owner.{name})
    embedder.{call}(*{{"submit": ["a"], "submit_batch": [["a"]]}}.get("{call}", []))
    for thread in threading.enumerate():
        if thread.name == "embedlib-close":
            thread.join()
    print(engine.is_closed, waits.result().shape)
    """
    check(run(FAKE, program), "True (6,)")


INTERRUPTING = """
release = engine.release if "engine" in globals() else lambda: None
signal.signal(signal.SIGTERM, lambda *_: embedder.close())
done = []

class Interrupting:
    \"\"\"A lock, condition or list; a signal comes when the main thread took it or added.\"\"\"
    def __init__(self, original, taker=None, turn=1):
        self.original, self.taker, self.turns_left = original, taker, turn
    def interrupt(self):
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self.taker in (None, sys._getframe(2).f_code.co_name):
            self.turns_left -= 1
            if self.turns_left == 0:
                done.append(True)
                threading.Timer(0.1, release).start()  # the engine answers while it is closed
                signal.raise_signal(signal.SIGTERM)
    def __enter__(self):
        found = self.original.__enter__()
        self.interrupt()
        return found
    def acquire(self, *arguments, **options):
        found = self.original.acquire(*arguments, **options)
        self.interrupt()
        return found
    def append(self, item):
        self.original.append(item)
        self.interrupt()
    def __len__(self):
        return len(self.original)
    def __exit__(self, *exc_info):
        return self.original.__exit__(*exc_info)
    def __getattr__(self, name):
        return getattr(self.original, name)
"""
INTERRUPTED_END = """
for thread in threading.enumerate():
    if thread.name == "embedlib-close":
        thread.join()
print(done, [t.name for t in threading.enumerate() if t.name.startswith("embedlib-")])
"""
IN_A_FUTURE = {
    "a call": (3, "embedder.encode(['b'] * 9, show_progress_bar=True)"),
    "a stream": (3, "list(embedder.encode_stream(['b']))"),
    "a coroutine": (2, "asyncio.run(embedder.aencode(['b'] * 9))"),
    "a future": (1, "waited.result()"),
}


@pytest.mark.parametrize("call", IN_A_FUTURE)
def test_a_signal_may_close_inside_a_future(run: Run, call: str) -> None:
    turn, code = IN_A_FUTURE[call]
    program = f"""
    import asyncio
    import embedlib.batching.pipeline
    class Job(embedlib.batching.pipeline.Job):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.future._callbacks = Interrupting([], "add_done_callback", {turn})
    engine.hold()
    waited = embedder.submit("a")
    waited._condition = Interrupting(waited._condition, "result")
    embedlib.batching.pipeline.Job = Job
    engine.wait_submitted(1)
    try:
        {code}
    except ClosedError:
        pass
    """
    result = run(FAKE, INTERRUPTING, program, INTERRUPTED_END)
    assert (result.returncode, result.stdout.strip()) == (0, "[True] []"), result.stderr


IN_A_LOCK = {
    "queries": ("embedder._pipeline._manager", "_changed", "embedder.encode_query(['b'] * 2)"),
    "bulk": ("embedder._pipeline._tokenizer_thread", "_changed", "embedder.encode(['b'] * 100)"),
    "per-token vectors": (
        "embedder._token_pipeline",
        "_lock",
        "embedder.encode('b', output_value='token_embeddings')",
    ),
}


@pytest.mark.parametrize("call", IN_A_LOCK)
def test_a_signal_may_close_where_a_call_holds_a_lock(run: Run, call: str, model: Path) -> None:
    owner, name, code = IN_A_LOCK[call]
    program = f"""
    {owner}.{name} = Interrupting({owner}.{name})
    try:
        {code}
    except ClosedError:
        pass
    """
    result = run(REAL, INTERRUPTING, program, INTERRUPTED_END, argument=model)
    assert (result.returncode, result.stdout.strip()) == (0, "[True] []"), result.stderr


def test_a_signal_between_calls_closes_before_its_handler_returns(run: Run) -> None:
    # Also where the program's own modules and threads have names like ours.
    program = """
    import types
    module = types.ModuleType("embedlib.batching.mine")
    exec("import signal\\ndef raise_it(): signal.raise_signal(signal.SIGTERM)", vars(module))
    def close(*_):
        embedder.close()
        print(engine.is_closed)
    signal.signal(signal.SIGTERM, close)
    stream = embedder.encode_stream(["a", "b"])
    next(stream)  # a generator that waits holds no lock
    module.raise_it()
    """
    check(run(FAKE, program), "True")


def test_an_embedder_in_a_cycle_is_collected_and_its_threads_end(run: Run, model: Path) -> None:
    program = """
    import gc
    def names():
        return [t.name for t in threading.enumerate() if t.name.startswith("embedlib-")]
    embedder.me = embedder
    assert {"embedlib-batches", "embedlib-tokenizer"} <= set(names())
    del embedder
    gc.collect()
    print(names())
    """
    check(run(REAL, program, argument=model), "[]")
    check(run(FAKE, program), "[]")


SOCKETS = """
import os, re, sys
events = []
sys.addaudithook(
    lambda name, args: events.append(name) if name.startswith(("socket.", "os.fork")) else None
)
from pathlib import Path
from embedlib import Embedder

def sockets():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass  # that of listdir itself
    return [link for link in links if link.startswith("socket:")]

assert sockets() == [], "the test itself was given a socket"
with Embedder(sys.argv[1], engine_cache_dir=Path(sys.argv[1]) / "cache-sockets") as embedder:
    embedder.encode(["a river", "a city"] * 50)
    embedder.encode("a query")
    opened = sockets()
    threads = [Path(f"/proc/self/task/{task}/comm").read_text().strip()
               for task in os.listdir("/proc/self/task")]
assert "openvino" in sys.modules
print(events, opened, [name for name in threads if "telemetry" in name.lower()])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_openvino_engine_opens_no_socket(model: Path, tmp_path: Path) -> None:
    # The audit hook sees Python's sockets, also those closed again; /proc those of C++. A fork has
    # sockets that neither sees: openvino's telemetry reports from one, except in a CI or where a
    # file in the home folder forbids it.
    says_ci = ("CI", "TF_BUILD", "JENKINS_URL")
    environment = {name: value for name, value in os.environ.items() if name not in says_ci}
    environment["HOME"] = str(tmp_path)
    check(run_alone(SOCKETS, model, environment), "[] [] []")
    assert list(tmp_path.iterdir()) == []


TELEMETRY = """
from embedlib.engines.openvino import engine
import openvino_telemetry
from openvino.tools.ovc import telemetry_utils
print(openvino_telemetry.Telemetry.__module__, telemetry_utils.tm is openvino_telemetry)
"""


def test_openvino_keeps_its_telemetry_for_a_program_that_uses_its_tools() -> None:
    check(run_alone(TELEMETRY), "openvino_telemetry.main True")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_look_for_sockets_can_fail(model: Path) -> None:
    hole = "    import socket; keep = socket.socket()\n    opened ="
    result = run_alone(SOCKETS.replace("    opened =", hole), model)
    assert "socket.__new__" in result.stdout
    assert "socket:[" in result.stdout

"""Ray Serve: the routes of `embedlib serve`, and replicas that come, go and die under load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import httpx
import psutil
import pytest
from ray import serve

from embedlib.config import Config
from embedlib.errors import ConfigError
from embedlib.serve import ServeOptions
from embedlib.serve.fleet import Replicas
from embedlib.testing import fake_embedder
from embedlib_ray import Fleet, app, build_app, run, serve_models
from embedlib_ray.run import APP, start
from tests.ports import free_port
from tests.ray.fakes import paced_embedder

FAST = 2000.0
"""Texts a second."""
WAIT_SECONDS = 180.0
NUM_CLIENTS = 12
BULK = [f"bulk {number}" for number in range(40)]


@pytest.fixture(scope="module")
def port(driver: str) -> Iterator[int]:
    """The port of Ray Serve: a cluster has one."""
    yield free_port()
    serve.shutdown()


@pytest.fixture(scope="module")
def serving(port: int) -> Callable[..., str]:
    """Start an application, or put another one in its place; returns the URL."""

    def run(models: Any, options: ServeOptions | None = None, **fleet: Any) -> str:
        given = {"replica_cpus": 0.2, "upscale_seconds": 1.0, "downscale_seconds": 600.0, **fleet}
        start(build_app(models, options=options, fleet=Fleet(**given)), "127.0.0.1", port)
        return f"http://127.0.0.1:{port}"

    return run


def num_replicas(name: str) -> int:
    """Replicas of a deployment that run."""
    deployment = serve.status().applications[APP].deployments[name]
    return int(deployment.replica_states.get("RUNNING", 0))


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.1)


async def embed(client: httpx.AsyncClient, texts: list[str], **fields: Any) -> httpx.Response:
    body = {"model": "one", "input": texts, **fields}
    return await client.post("/v1/embeddings", json=body)


async def keep_asking(url: str, work: Callable[[], None], statuses: list[int]) -> None:
    """Ask without a pause while something is done, and note the statuses."""
    done = asyncio.Event()

    async def ask(client: httpx.AsyncClient) -> None:
        while not done.is_set():
            statuses.append((await embed(client, ["a query"])).status_code)
            statuses.append((await embed(client, BULK)).status_code)

    async def do() -> None:
        try:
            await asyncio.to_thread(work)
        finally:
            done.set()

    async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS) as client:
        await asyncio.gather(do(), *(ask(client) for _ in range(NUM_CLIENTS)))


def test_a_command_answers_as_one_server_does_until_it_is_told_to_end(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    told: list[bool] = []
    run_command(
        *(port, paced_embedder(FAST), lambda: ask_and_end(url, told)),
        on_start=lambda: told.append(is_up(url)),
    )
    wait_until(lambda: status_of_app() is None)


def test_a_command_ends_while_its_replicas_wait_for_cpus(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    def end() -> None:
        wait_until(lambda: status_of_app() == "DEPLOYING")
        os.kill(os.getpid(), signal.SIGTERM)

    on_start = Mock()
    run_command(port, paced_embedder(FAST), end, cpus=64.0, on_start=on_start)
    assert not on_start.called
    assert "2 replicas with 64 each" in caplog.text
    wait_until(lambda: status_of_app() in (None, "DELETING"))  # Ray's controller looks now and then


def test_a_command_that_was_replaced_does_not_end_what_replaced_it(
    port: int,
    serving: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = []
    version = run._version

    def look() -> str | None:
        looked.append(version())
        return looked[-1]

    def replace_and_end() -> None:
        try:
            wait_until(lambda: len(looked) == 2)  # before the command starts, and behind it
            serving({"one": paced_embedder(FAST)})
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def refuse(*_: object) -> None:
        raise ConfigError("it goes no further")

    wait_until(lambda: status_of_app() is None)  # Ray may still delete that of the test before
    monkeypatch.setattr(run, "_version", look)
    run_command(port, paced_embedder(FAST), replace_and_end)
    assert status_of_app() == "RUNNING"
    assert "is replaced" not in caplog.text
    monkeypatch.setattr(run, "start", refuse)
    with pytest.raises(ConfigError, match="goes no further"):
        run_command(port, paced_embedder(FAST), lambda: None)
    assert "this cluster has an application 'embedlib', which is replaced" in caplog.text
    serve.delete(APP)


def status_of_app() -> str | None:
    """What Ray says of the application; None: there is none."""
    found = serve.status().applications.get(APP)
    return None if found is None else found.status.value


def run_command(
    port: int,
    model: Any,
    meanwhile: Callable[[], None],
    *,
    cpus: float = 0.2,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve a model until another thread has sent the signal."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(meanwhile)
            serve_models(
                {"one": model},
                "auto",
                host="127.0.0.1",
                port=port,
                config=Config(),
                options=ServeOptions(api_keys=("secret",)),
                replicas=Replicas(min_replicas=1, max_replicas=1, cpus=cpus),
                on_start=on_start,
            )
            done.result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ask_and_end(url: str, told: list[bool]) -> None:
    """Ask for all that a server answers as soon as it is told, then send the signal."""
    try:
        wait_until(lambda: told == [True])
        check_answers(url)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def is_up(url: str) -> bool:
    """Whether a gateway answers; replicas may still be starting."""
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def check_answers(url: str) -> None:
    with fake_embedder() as embedder:
        expected = embedder.encode(["a", "text"]).tolist()
        unit = embedder.encode(["a", "text"], normalize_embeddings=True).tolist()
    with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as client:
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/ready").json() == {"status": "ready", "models": {"one": "ready"}}
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 401
        client.headers["authorization"] = "Bearer secret"
        found = client.post("/v1/embeddings", json={"model": "one", "input": ["a", "text"]})
        assert [row["embedding"] for row in found.json()["data"]] == expected
        bulk = client.post("/embed", json={"inputs": ["a", "text"] * 30})
        assert bulk.json() == [pytest.approx(row, abs=1e-6) for row in unit] * 30
        assert client.get("/nowhere").status_code == 404
        assert client.post("/v1/embeddings", content=b"{").status_code == 400


def test_replicas_follow_the_work_and_no_request_is_lost_by_a_kill_or_an_update(
    serving: Callable[..., str],
) -> None:
    slow: Any = {"one": paced_embedder(50)}
    url = serving(slow, max_replicas=4, bulk_wait_seconds=2.0)
    assert num_replicas("one-bulk") == 1
    num_answers = []

    def work() -> None:
        wait_until(lambda: num_replicas("one-bulk") >= 3)
        for lane in ("query", "bulk"):
            os.kill(replica_pid(f"one-{lane}"), signal.SIGKILL)
        faster: Any = {"one": paced_embedder(400)}
        num_answers.append(len(statuses))
        serving(faster, ServeOptions(max_texts=100), max_replicas=1)
        num_answers.append(len(statuses))

    statuses: list[int] = []
    asyncio.run(keep_asking(url, work, statuses))
    assert set(statuses) == {200}
    assert num_answers[1] > num_answers[0]  # how many, depends on how long Ray takes to start
    too_many = httpx.post(f"{url}/v1/embeddings", json={"input": ["a"] * 101})
    assert too_many.status_code == 413  # of the new version


def replica_pid(name: str) -> int:
    """The process of a replica, by the title that Ray gives it."""
    title = f"ServeReplica:{APP}:{name}"
    found = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"]]
    return next(int(each.pid) for each in found if title in " ".join(each.info["cmdline"]))


def test_many_models_share_replicas_which_end_and_come_again_with_every_request_held(
    serving: Callable[..., str],
) -> None:
    models = {f"m{number}": paced_embedder(FAST) for number in range(5)}
    url = serving(models, models_per_replica=2, min_replicas=0, downscale_seconds=0.5)
    wait_until(lambda: num_replicas("shared-query") == 0)

    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS) as client:
            names = [name for name in models for _ in range(4)]
            asked = (embed(client, [f"text for {name}"], model=name) for name in names)
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    for _ in range(2):
        assert asyncio.run(ask()) == [200] * 20
    listed = httpx.get(f"{url}/v1/models").json()["data"]
    assert [row["id"] for row in listed] == list(models)
    wrong = httpx.post(f"{url}/v1/embeddings", json={"model": "m5", "input": "a"})
    assert wrong.status_code == 404
    assert wrong.json()["error"]["message"].startswith("no model 'm5' here; there is m0")


def test_what_cannot_be_served_is_told(serving: Callable[..., str], port: int) -> None:
    with pytest.raises(ConfigError, match=rf"listens at 127\.0\.0\.1:{port} already"):
        start(build_app({"one": "/nowhere/model"}), "127.0.0.1", port + 1)
    with pytest.raises(ConfigError, match=r"cannot start: .*nowhere"):
        serving({"one": "/nowhere/model"})


def test_jobs_and_no_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no model"):
        build_app([])
    with pytest.raises(ConfigError, match="belongs to one server"):
        build_app(["m"], options=ServeOptions(data_dir="jobs"))
    with pytest.raises(
        ConfigError, match=r"models = 'org/m'; it must be a list, such as \['org/m'"
    ):
        build_app("org/m")


def test_a_model_may_be_called_by_what_ray_separates_names_with() -> None:
    build_app({"org/model#2": "org/model"})


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"min_replicas": "1"}, "min_replicas = '1'; it must be a whole number of at least 0"),
        ({"max_replicas": 0}, "max_replicas = 0; it must be a whole number of at least 1"),
        ({"min_replicas": 9}, "min_replicas = 9, max_replicas = 8; the second must be at least"),
        ({"replica_cpus": float("nan")}, "replica_cpus = nan; it must be a number above 0"),
        ({"replica_gpus": 1.5}, "replica_gpus = 1.5; it must be 0 or more, and whole above 1"),
        ({"upscale_seconds": -1}, "upscale_seconds = -1; it must be a number of seconds"),
        ({"models_per_replica": 0}, "models_per_replica = 0; it must be a whole number of at"),
        ({"num_gateways": 0}, "num_gateways = 0; it must be a whole number of at least 1"),
        ({"min_replica": 1}, "unknown option 'min_replica'; did you mean 'min_replicas'"),
    ],
)
def test_wrong_args_of_a_deployment_are_named(args: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        app({"models": ["m"], **args})


def test_fractions_of_a_gpu_and_whole_ones_are_taken() -> None:
    for gpus in (0, 0.25, 1, 2):
        assert Fleet(replica_gpus=gpus).replica_gpus == gpus


@pytest.mark.parametrize(
    ("config", "replica_gpus", "device"),
    [
        (None, 0, "cpu"),
        (None, 0.5, None),
        (Config(device="cuda:1"), 0, "cuda:1"),
        (Config(engine="cuda"), 0, None),
    ],
)
def test_a_replica_without_a_gpu_computes_on_the_cpu(
    config: Config | None, replica_gpus: float, device: str | None
) -> None:
    made = build_app(["m"], config=config, fleet=Fleet(replica_gpus=replica_gpus))
    [of_model] = made._bound_deployment.init_args[0].values()
    assert set(of_model) == {"query", "bulk"}
    for replica in of_model.values():
        assert replica._bound_deployment.init_args[2].device == device


@pytest.mark.parametrize(
    ("config", "cpus", "threads"), [(None, 0.5, 1), (None, 2.5, 2), (Config(threads=3), 2.5, 3)]
)
def test_a_replica_has_a_thread_for_each_core(
    config: Config | None, cpus: float, threads: int
) -> None:
    made = build_app(["m"], config=config, fleet=Fleet(replica_cpus=cpus))
    [of_model] = made._bound_deployment.init_args[0].values()
    for replica in of_model.values():
        assert replica._bound_deployment.init_args[2].threads == threads


def test_what_a_fleet_says_reaches_its_deployments() -> None:
    options = ServeOptions(api_keys=("secret",), allowed_hosts=("example.org",), max_texts=7)
    fleet = Fleet(
        max_replicas=5, num_gateways=3, query_wait_seconds=1.5, bulk_wait_seconds=9, replica_gpus=2
    )
    made = build_app({"m": "org/model", "made": fake_embedder}, options=options, fleet=fleet)
    gateway = made._bound_deployment
    assert (gateway.name, gateway.num_replicas, gateway.init_args[1]) == ("gateway", 3, options)
    assert gateway.init_kwargs["sources"] == {"m": "org/model"}
    for lane, seconds in (("query", 1.5), ("bulk", 9)):
        replica = gateway.init_args[0]["m"][lane]._bound_deployment
        inner = replica.init_args[3]  # whom the gateway has let in, a replica asks for no key
        assert (inner.api_keys, inner.allowed_hosts, inner.max_texts) == ((), None, 7)
        assert replica.ray_actor_options == {"num_cpus": 1.0, "num_gpus": 2}
        scaling = replica._deployment_config.autoscaling_config
        assert scaling.policy.policy_kwargs == {"target_seconds": seconds}
        assert (scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas) == (1, 1, 5)


@pytest.mark.parametrize("num_models", [None, 2])
def test_models_have_replicas_of_their_own_or_share_them(num_models: int | None) -> None:
    made = build_app(["a", "b"], fleet=Fleet(models_per_replica=num_models))
    of_models, given = made._bound_deployment.init_args[0], made._bound_deployment.init_kwargs
    assert list(of_models) == ["a", "b"]
    shares = {of_models["a"][lane] is of_models["b"][lane] for lane in ("query", "bulk")}
    assert shares == {num_models is not None}
    assert (given["is_shared"], given["are_awake"]) == (num_models is not None, num_models is None)

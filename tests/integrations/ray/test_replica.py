"""What a replica of a fleet answers and tells of itself; Ray is tested by .ci/ray."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from embedlib.config import Config
from embedlib.errors import EmbedlibError, EngineRunError
from embedlib.serve import ServeOptions, create_app
from embedlib.testing import FakeEngine, fake_embedder
from embedlib_ray import replica
from embedlib_ray.autoscaling import BUSY, WORK
from embedlib_ray.replica import Answer, Call, Held, Loaded, ModelReplica, SharedReplica, answer

SECONDS = 30.0
EMBED = Call(method="POST", path="/v1/embeddings", body=b'{"input": ["a", "b"]}')


def test_a_replica_answers_as_the_server_does_and_tells_its_work() -> None:
    async def run() -> tuple[Answer, tuple[float, float]]:
        with fake_embedder() as embedder:
            application = create_app({"m": embedder})
            await application.start()
            await application.loaded()
            body = json.dumps({"model": "m", "input": ["a", "b"]}).encode()
            call = Call(method="POST", path="/v1/embeddings", body=body)
            loaded = Loaded(application)
            found = await answer(application, call)
            look = loaded.look()
            await application.close()
            return found, look

    found, (work, busy) = asyncio.run(run())
    assert found.status == 200
    assert len(json.loads(found.body)["data"]) == 2
    assert work == 0.0
    assert 0.0 <= busy <= 1.0


def test_a_replica_tells_which_share_of_the_time_it_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((100.0, 110.0, 120.0, 120.0))
    seconds = iter((5.0, 35.0, 35.0))
    monkeypatch.setattr(replica, "monotonic", lambda: next(clock))
    monkeypatch.setattr(replica, "computed", lambda _: (0, next(seconds)))
    model = Mock(admission=Mock(seconds_of_work=2.0))
    loaded = Loaded(Mock(catalog=[model]))
    assert [loaded.look() for _ in range(3)] == [(2.0, 0.5), (2.0, 1.0), (2.0, 0.0)]


def test_a_model_that_cannot_be_loaded_is_told() -> None:
    with pytest.raises(EmbedlibError, match=r"^m: .*/nowhere/model"):
        asyncio.run(Loaded.load("m", "/nowhere/model", Config(), ServeOptions()))


def test_options_reach_the_model_and_the_server_of_a_replica(tiny_folder: Any) -> None:
    async def work() -> tuple[Any, Answer]:
        loaded = await Loaded.load(
            "m", str(tiny_folder("bert")), Config(truncate_dim=3), ServeOptions(max_texts=1)
        )
        [model] = loaded.application.catalog
        found = model.session, await answer(loaded.application, EMBED)
        await loaded.application.close()
        return found

    session, refused = asyncio.run(work())
    assert session.truncate_dim == 3
    assert refused.status == 413


def test_a_shared_replica_holds_models_until_they_are_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        models = {"a": fake_embedder, "b": fake_embedder}
        shared = SharedReplica(models, Config(), ServeOptions())
        held = [await shared.load(name) for name in models]
        monkeypatch.setattr(shared, "load", AsyncMock(return_value=held[0]))
        assert (await shared.answer(EMBED, "a")).status == 200
        monkeypatch.setattr(Loaded, "look", lambda _: (2.0, 0.75))
        assert shared.record_autoscaling_stats() == {WORK: 4.0, BUSY: 1.0}
        await held[1].__del__()
        assert shared.record_autoscaling_stats() == {WORK: 2.0, BUSY: 0.75}
        await held[0].__del__()

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_a_model_is_closed_when_its_last_request_is_answered() -> None:
    async def work() -> None:
        may_answer = asyncio.Event()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            await may_answer.wait()
            assert not loaded.application.close.called
            await send({"type": "http.response.start", "status": 200, "headers": []})

        loaded = Mock(application=Mock(side_effect=application, close=AsyncMock()))
        shared = SharedReplica({}, Config(), ServeOptions())
        forget = Mock()
        held = Held(loaded, forget)
        call = Call(method="GET", path="/")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared, "load", AsyncMock(return_value=held))
            asked = [asyncio.create_task(shared.answer(call, "m")) for _ in range(3)]
            await asyncio.sleep(0)
            asked[0].cancel()
            evicted = asyncio.create_task(held.__del__())
            with suppress(asyncio.CancelledError):
                await asked[0]
            assert forget.called
            assert not loaded.application.close.called
            may_answer.set()
            assert [(await each).status for each in asked[1:]] == [200, 200]
            await evicted
        assert loaded.application.close.called

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_a_replica_whose_gpu_is_lost_is_unhealthy() -> None:
    async def work() -> None:
        engine = FakeEngine()
        made = {"a": lambda: fake_embedder(engine)}
        alone = ModelReplica.__new__(ModelReplica)
        await alone.__init__("a", made["a"], Config(), ServeOptions())  # type: ignore[misc]
        shared = SharedReplica(made, Config(), ServeOptions())
        await shared.load("a")
        assert alone.record_autoscaling_stats()[WORK] == 0.0
        assert (await alone.answer(EMBED, "a")).status == 200
        for each in (alone, shared):
            each.check_health()
        engine.lost = "the GPU is lost (an error)"  # type: ignore[attr-defined]
        for each in (alone, shared):
            with pytest.raises(EngineRunError, match="a: the GPU is lost"):
                each.check_health()
        for loaded in (alone._loaded, *shared._held.values()):
            await loaded.application.close()

    asyncio.run(asyncio.wait_for(work(), SECONDS))

"""Makes the engines of a plan: one for each device."""

from __future__ import annotations

import logging
from dataclasses import replace

from embedlib.config import Config
from embedlib.engines.base import Engine
from embedlib.engines.kind import EnginePlan
from embedlib.engines.many import ManyEngines
from embedlib.engines.precision import with_weights
from embedlib.models.reading.files import ModelFiles


def make_engine(plan: EnginePlan, files: ModelFiles, config: Config) -> Engine:
    """Load a model into the planned engine; several devices share the CPU threads and one queue.

    Raises:
        ModelWeightsError: the weights do not fit the model.
        EngineBuildError: compiling failed.
    """
    plan = with_weights(plan, files, config)
    if plan.warning:
        logging.getLogger(__name__).warning("%s", plan.warning)
    config = replace(config, threads=plan.threads_each(config))
    engines: list[tuple[str, Engine]] = []
    try:
        for place, device in enumerate(plan.devices):
            one = replace(plan, devices=(device,), gpus=plan.gpus[place : place + 1])
            engine = plan.kind.make(one, files, config)
            engines.append((device, engine))
        return engines[0][1] if len(engines) == 1 else ManyEngines(engines)
    except BaseException:
        for _, engine in engines:
            engine.close()
        raise

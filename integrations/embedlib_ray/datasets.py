"""`embed_dataset`: a Ray dataset with a column of vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import ray
import ray.data

from embedlib.config import Config
from embedlib_ray.actor import EmbedlibActor, check_column
from embedlib_ray.model import check_one_vector, describe_model, name_for_workers, plan_for
from embedlib_ray.worker import MakeEmbedder

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.types import ConfigOptions

BATCH_ROWS = 1024
"""Rows that an actor takes at a time: as many as the scheduler sorts by length."""


def embed_dataset(
    dataset: ray.data.Dataset,
    model: str | MakeEmbedder,
    *,
    text: str = "text",
    output: str = "embedding",
    num_workers: int | None = None,
    **options: Unpack[ConfigOptions],
) -> ray.data.Dataset:
    """Return a dataset with the vectors of its texts; they are computed when it is read.

    A first actor loads the model now, so that what is wrong is told before the first row.

    Args:
        dataset: any dataset of Ray Data.
        model: a name, or a folder or pack that all machines see; or a function that makes an
            embedder.
        text: the column with the texts.
        output: the column that gets the vectors, float32[D].
        num_workers: actors; None: one for each GPU, or else for each machine. Those of a machine
            share its model.
        **options: fields of `embedlib.Config`.

    Raises:
        InputError: the dataset has no such column.
        ModelNotFoundError: a worker does not find the model.
        EmbedlibError: it cannot be loaded there, or makes a vector per token.
    """
    schema = dataset.schema(fetch_if_missing=False)
    if schema is not None:  # else the actors see the columns first
        check_column(schema.names, text)
    config = Config.from_options(options)
    plan = plan_for(config, num_workers)
    if plan.num_gpus:
        plan = replace(plan, shares=(1,) * len(plan.shares))  # a GPU takes one actor
    identity = describe_model(model, config, plan)
    check_one_vector(identity)
    return dataset.map_batches(
        EmbedlibActor,
        fn_constructor_kwargs={
            "model": name_for_workers(model),
            "text": text,
            "output": output,
            "fingerprint": identity.fingerprint,
            **options,
        },
        batch_size=BATCH_ROWS,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=plan.num_workers),
        num_cpus=plan.actor_cpus,
        num_gpus=plan.num_gpus or None,
        memory=plan.memory_for(identity.memory_bytes) // max(plan.shares) or None,
        udf_modifying_row_count=False,
    )

"""Vectors for Ray Data: `embed_dataset`, and the actor that it gives to `map_batches`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import ray
import ray.data
from ray.data.extensions import ArrowTensorArray

from embedlib.config import Config
from embedlib.errors import InputError
from embedlib.indexing import Vectors
from embedlib_ray.blocks import no_column
from embedlib_ray.model import (
    check_one_vector,
    config_for,
    describe_model,
    name_for_workers,
    plan_for,
)
from embedlib_ray.shared_model import SharedModel
from embedlib_ray.worker import MakeEmbedder, ModelPlan, Worker

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.types import ConfigOptions

BATCH_ROWS = 1024
"""Rows that an actor takes at a time: as many as the scheduler sorts by length."""


class EmbedlibActor:
    """Adds the vector of a text to each row of a batch.

    dataset.map_batches(
        EmbedlibActor,
        fn_constructor_kwargs={"model": "BAAI/bge-small-en-v1.5", "text": "body"},
        batch_size=1024, batch_format="pyarrow", num_cpus=3,
        compute=ray.data.ActorPoolStrategy(size=4))

    Ray's own format, NumPy, has no integer, date or flag that is missing: batches of Arrow keep
    the other columns as they are. `embed_dataset` chooses the numbers by the machines. However many
    actors a machine has, its memory holds the weights once: a process beside them computes. An
    actor with a GPU has them there for itself.
    """

    def __init__(
        self,
        model: str | MakeEmbedder,
        *,
        text: str = "text",
        output: str = "embedding",
        fingerprint: str | None = None,
        **options: Unpack[ConfigOptions],
    ) -> None:
        """Load the model.

        Args:
            model: a name, or the whole path of a folder or pack that all machines see; or a
                function that makes an embedder.
            text: the column with the texts.
            output: the column that gets the vectors.
            fingerprint: what the model must have; None: anything.
            **options: fields of `embedlib.Config`.

        Raises:
            EmbedlibError: the model cannot be loaded here, or is another one.
        """
        self._text = text
        self._output = output
        config = Config.from_options(options)
        self._model: SharedModel | Worker
        if ray.is_initialized() and not ray.get_gpu_ids():
            plan = ModelPlan(model=model, config=config_for(config, 0))
            self._model = SharedModel(plan, fingerprint)
        else:  # a GPU of its own, or outside of Ray
            self._model = Worker()
            self._model.open(ModelPlan(model=model, config=config), fingerprint)

    def __call__(self, batch: Any) -> Any:
        """Return the batch, a dict or an Arrow table, with float32[N, D] in the output column.

        Raises:
            InputError: it has no such column, or a value in it is no text.
        """
        if not isinstance(batch, pyarrow.Table):
            check_column(batch, self._text)
            texts = np.asarray(batch[self._text], object).tolist()
            return {**batch, self._output: self._embed(texts)}
        names = batch.column_names
        check_column(names, self._text)
        vectors = self._embed(batch.column(self._text).to_pylist())
        column = ArrowTensorArray.from_numpy(vectors)
        if self._output in names:
            return batch.set_column(names.index(self._output), self._output, column)
        return batch.append_column(self._output, column)

    def _embed(self, texts: list[str]) -> Vectors:
        try:
            vectors, _ = self._model.embed(texts)
        except InputError as error:  # it names the text by its number in the batch
            error.args = (f"the column {self._text!r}: {error}", *error.args[1:])
            raise
        return vectors


def check_column(names: Iterable[str], text: str) -> None:
    """Refuse a dataset without the column with the texts.

    Raises:
        InputError: it has others.
    """
    there = list(names)
    if text not in there:
        raise InputError(no_column(text, there))


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

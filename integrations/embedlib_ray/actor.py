"""`EmbedlibActor`: a model for `map_batches` of Ray Data, loaded once in each actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embedlib.config import Config
from embedlib.errors import InputError
from embedlib_ray.worker import MakeEmbedder, ModelPlan, Worker

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.types import ConfigOptions


class EmbedlibActor:
    """Adds the vector of a text to each row of a batch.

    dataset.map_batches(
        EmbedlibActor,
        fn_constructor_kwargs={"model": "BAAI/bge-small-en-v1.5", "text": "body"},
        batch_size=1024, num_cpus=3, compute=ray.data.ActorPoolStrategy(size=4))

    `embed_dataset` chooses these numbers by the machines.
    """

    def __init__(
        self,
        model: str | MakeEmbedder,
        *,
        text: str = "text",
        output: str = "embedding",
        num_per_machine: int = 1,
        fingerprint: str | None = None,
        **options: Unpack[ConfigOptions],
    ) -> None:
        """Load the model.

        Args:
            model: a name, or the whole path of a folder or pack that all machines see; or a
                function that makes an embedder.
            text: the column with the texts.
            output: the column that gets the vectors.
            num_per_machine: actors that share the cores of a machine.
            fingerprint: what the model must have; None: anything.
            **options: fields of `embedlib.Config`.

        Raises:
            EmbedlibError: the model cannot be loaded here, or is another one.
        """
        self._text = text
        self._output = output
        self._worker = Worker()
        config = Config.from_options(options)
        plan = ModelPlan(model=model, config=config, num_per_machine=num_per_machine)
        self._worker.open(plan, fingerprint)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with float32[N, D] in the output column.

        Raises:
            InputError: it has no such column, or a value in it is no text.
        """
        if self._text not in batch:
            columns = ", ".join(sorted(batch))
            raise InputError(f"the dataset has no column {self._text!r}; it has {columns}")
        texts = np.asarray(batch[self._text], object).tolist()
        vectors, _ = self._worker.embed(texts)
        return {**batch, self._output: vectors}

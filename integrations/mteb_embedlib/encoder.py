"""EmbedlibEncoder: an Embedder behind mteb's encoder interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.types import PromptType

from embedlib import Embedder


class EmbedlibEncoder(AbsEncoder):  # type: ignore[misc]
    """Texts of mteb's tasks to vectors, computed by an Embedder, which the caller closes.

    Prompts are chosen as mteb chooses them for sentence-transformers: a prompt of the Embedder
    whose name is that of the task or of its type, else the query or document prompt. Vectors are
    compared with the Embedder's own similarity.

        mteb.evaluate(EmbedlibEncoder(embedder), tasks)
    """

    model: Embedder

    def __init__(self, embedder: Embedder) -> None:
        """Use a loaded Embedder; what its scores depend on names results in mteb's cache."""
        self.model = embedder
        self.model_prompts = dict(embedder.prompts)
        # Such names are ORGANIZATION/NAME, and a folder's or a package's may be neither.
        name = "embedlib/" + embedder.model_name.strip("/").replace("/", "__")
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": name, "revision": _revision(embedder)}
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return float32[N, D].

        Args:
            inputs: batches; "text" is the list of their texts.
            task_metadata: names the task and its type.
            hf_split: ignored.
            hf_subset: ignored.
            prompt_type: query, document or None.
            **kwargs: arguments of `Embedder.encode`.

        Raises:
            EmbedlibError: see `Embedder.encode`.
        """
        return self.model.encode(
            [text for batch in inputs for text in batch["text"]],
            prompt_name=self.get_prompt_name(task_metadata, prompt_type),
            role=None if prompt_type is None else prompt_type.value,
            **kwargs,
        )


def _revision(embedder: Embedder) -> str:
    """Return what scores depend on.

    Several precisions share a fingerprint, and so do all ways to compare vectors.
    """
    revision = embedder.fingerprint
    if embedder.precision != "float32":
        revision += f" in {embedder.precision}"
    if embedder.similarity_fn_name != embedder.spec.similarity:
        revision += f" by {embedder.similarity_fn_name}"
    return revision

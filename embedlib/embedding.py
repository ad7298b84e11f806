"""What Embedder knows of its vectors: prompts, dimensions, how alike they are, their fingerprint.

`Embedder` adds the ways to make them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embedlib.config import Config, PrecisionName, Similarity
from embedlib.models.prompts import Role
from embedlib.session.base import Session
from embedlib.session.call import Calls, check_role
from embedlib.session.loading import LoadedModel
from embedlib.vectors.similarity import similarity, similarity_pairwise


class EmbeddingSession(Session):
    """A model that ends in one vector for a text."""

    def _start(self, name: str, model: LoadedModel, config: Config) -> None:
        self._calls = Calls(model.spec, config, model.known)
        self._precision = model.precision
        self._fingerprint_in = model.fingerprint_in
        super()._start(name, model, config)

    @property
    def prompts(self) -> Mapping[str, str]:
        """The model's prompts by name: the folder's, the caller's and those known of it."""
        return MappingProxyType(self._calls.prompts.by_name)

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt that `encode` puts in front when none is named."""
        return self._calls.prompts.default_name

    def task_prompt_name(self, role: Role) -> str | None:
        """Return the name of the prompt that `encode_query` or `encode_document` puts in front."""
        check_role(role)
        return self._calls.prompts.role_name(role)

    @property
    def truncate_dim(self) -> int | None:
        """The first dimensions that are kept, unless a call says otherwise; None: all."""
        return self._calls.truncate_dim

    def get_embedding_dimension(self) -> int:
        """Return D, after `truncate_dim`."""
        return self.truncate_dim or self.spec.embedding_dim

    get_sentence_embedding_dimension = get_embedding_dimension
    """The former name."""

    @property
    def precision(self) -> str:
        """What the vectors are computed in, and which layers are not."""
        return self._precision

    @property
    def similarity_fn_name(self) -> Similarity:
        """What `similarity` computes."""
        return self.config.similarity_fn_name or self.spec.similarity

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> NDArray[np.float32]:
        """Return float32[N, M]: how alike every pair of vectors is, higher is more.

        Args:
            embeddings1: float[N, D] or float[D].
            embeddings2: float[M, D] or float[D].

        Raises:
            InputError: these are not vectors of one length.
        """
        return similarity(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(
        self, embeddings1: ArrayLike, embeddings2: ArrayLike
    ) -> NDArray[np.float32]:
        """Return float32[N]: how alike each vector is to the one in the same place.

        Args:
            embeddings1: float[N, D] or float[D].
            embeddings2: the same shape.

        Raises:
            InputError: these are not as many vectors, or not of one length.
        """
        return similarity_pairwise(self.similarity_fn_name, embeddings1, embeddings2)

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors may change; store it beside them. Reads all weights once."""
        return self._fingerprint({"precision": self.precision, **self._settings()})

    def fingerprint_in(self, precision: PrecisionName) -> str | None:
        """Return the fingerprint with another option `precision`; None: it cannot be known."""
        of = self._fingerprint_in
        return None if of is None else of(precision, self._settings())

    def _settings(self) -> dict[str, object]:
        return {**self._calls.settings(), "max_seq_length": self.max_seq_length}

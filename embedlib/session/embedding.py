"""What an Embedder says of its vectors: prompts, dimensions, precision, similarity, fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import overload

from embedlib.config import AnySimilarity, PrecisionName
from embedlib.models.prompts import Role
from embedlib.session.base import Session
from embedlib.session.call_factory import CallFactory
from embedlib.session.checked import checked
from embedlib.vectors.arrays import ArrayOrTensor, TensorT
from embedlib.vectors.maxsim import maxsim, maxsim_pairwise
from embedlib.vectors.similarity import as_torch, similarity, similarity_pairwise
from embedlib.vectors.sparse import Comparable, are_sparse


class EmbeddingSession(Session):
    """Base of `Embedder`: everything that needs no text."""

    _calls: CallFactory

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts by name: of the model folder, of the options, and those embedlib knows."""
        return MappingProxyType(self._calls.prompts.by_name)

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt that `encode` uses by default."""
        return self._calls.prompts.default_name

    @checked
    def task_prompt_name(self, role: Role) -> str | None:
        """Return the name of the prompt of `encode_query` or `encode_document`."""
        return self._calls.prompts.role_name(role)

    @property
    def truncate_dim(self) -> int | None:
        """Number of dimensions that are kept, unless a call sets another; None: all."""
        return self._calls.truncate_dim

    def get_embedding_dimension(self) -> int:
        """Return D, after `truncate_dim`."""
        return self.truncate_dim or self.spec.embedding_dim

    @property
    def sparse_dim(self) -> int:
        """Token ids that a sparse vector may have are below this."""
        queries = None if self._model.files is None else self._model.files.queries
        specs = [self.spec, *([] if queries is None else [queries.spec])]
        return max(spec.encoder.vocab_size for spec in specs)

    get_sentence_embedding_dimension = get_embedding_dimension
    """The former name."""

    @property
    def similarity_fn_name(self) -> AnySimilarity:
        """The function that `similarity` computes."""
        late = self.spec.late_interaction
        if late is not None:
            return late.similarity
        return self.config.similarity_fn_name or self.spec.similarity

    @overload
    def similarity(  # type: ignore[overload-overlap] # a tensor makes an array, too
        self, embeddings1: TensorT | list[TensorT], embeddings2: Comparable
    ) -> TensorT: ...

    @overload
    def similarity(  # type: ignore[overload-overlap]
        self, embeddings1: Comparable, embeddings2: TensorT | list[TensorT]
    ) -> TensorT: ...

    @overload
    def similarity(self, embeddings1: Comparable, embeddings2: Comparable) -> ArrayOrTensor: ...

    def similarity(self, embeddings1: Comparable, embeddings2: Comparable) -> ArrayOrTensor:
        """Return float32[N, M]: the similarity of every pair of vectors; higher is more similar.

        An array, or where torch is imported a tensor, as in sentence-transformers. Sparse vectors
        of a model that makes others, too, are compared by dot.

        Args:
            embeddings1: float[N, D] or float[D]; of a late-interaction model, queries: a list of N
                arrays float[T, D], or one; or sparse vectors, or one.
            embeddings2: float[M, D] or float[D]; of a late-interaction model, documents; or sparse
                vectors.

        Raises:
            InputError: these are not vectors, or their dimensions differ.
        """
        name = self._kind(embeddings1)
        if name == "maxsim" or name == "meanmaxsim":
            return as_torch(maxsim(embeddings1, embeddings2, is_mean=name == "meanmaxsim"))
        return as_torch(similarity(name, embeddings1, embeddings2))

    @overload
    def similarity_pairwise(  # type: ignore[overload-overlap] # a tensor makes an array, too
        self, embeddings1: TensorT | list[TensorT], embeddings2: Comparable
    ) -> TensorT: ...

    @overload
    def similarity_pairwise(  # type: ignore[overload-overlap]
        self, embeddings1: Comparable, embeddings2: TensorT | list[TensorT]
    ) -> TensorT: ...

    @overload
    def similarity_pairwise(
        self, embeddings1: Comparable, embeddings2: Comparable
    ) -> ArrayOrTensor: ...

    def similarity_pairwise(
        self, embeddings1: Comparable, embeddings2: Comparable
    ) -> ArrayOrTensor:
        """Return float32[N], as `similarity` does: of each vector to the one in the same row.

        Args:
            embeddings1: float[N, D] or float[D].
            embeddings2: the same, or either is one vector, compared with each of the others.

        Raises:
            InputError: the shapes differ, or these are not vectors.
        """
        name = self._kind(embeddings1)
        if name == "maxsim" or name == "meanmaxsim":
            return as_torch(maxsim_pairwise(embeddings1, embeddings2, is_mean=name == "meanmaxsim"))
        return as_torch(similarity_pairwise(name, embeddings1, embeddings2))

    def _kind(self, embeddings: object) -> AnySimilarity:
        """Return how vectors are compared; bge-m3 compares only its dense ones by their angle."""
        if self.spec.is_sparse or self.config.similarity_fn_name or not are_sparse(embeddings):
            return self.similarity_fn_name
        return "dot"

    @property
    def fingerprint(self) -> str:
        """Changes whenever the vectors may change; store it beside them. Reads all weights once.

        A precision that passed the fidelity gate has the fingerprint of the model's own precision.
        """
        return self._model.fingerprint(self._settings())

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """`fingerprint`, and others of stored vectors that those of this object may stand beside.

        These are of precisions that passed the gate, each by its own name: so vectors are stored in
        a precision that was forced before its report was made.
        """
        return self._model.fingerprints(self._settings())

    def fingerprint_in(self, precision: PrecisionName) -> str | None:
        """Return the fingerprint of vectors in another `precision` that passed no gate.

        None if it is unknown.

        Raises:
            ConfigError: there is no such precision.
        """
        return self._model.fingerprint_in(precision, self._settings())

    def _settings(self) -> dict[str, object]:
        return {**self._calls.settings(), "max_seq_length": self.max_seq_length}

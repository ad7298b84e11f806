"""The table of a static model: a row of numbers for every token id, as its file stores it.

Source: `StaticEmbedding.load` of sentence-transformers 6.2, and model2vec 0.10, persistence: the
row of a token is `embeddings[mapping[id]] * weights[id]`, where the file has the last two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import ModelWeightsError
from embedlib.models.reading.json_files import show
from embedlib.models.weights.safetensors_files import STORED_DTYPES, StoredTensor, list_tensors

TABLE_NAMES: Final = ("embedding.weight", "embeddings")
"""Of sentence-transformers and of model2vec."""

TOKEN_WEIGHTS: Final = "weight"
"""The only tensor of `SparseStaticEmbedding` in sentence-transformers 6.2."""

FLOATS: Final = ("F64", *STORED_DTYPES)
INTEGERS: Final = ("I64", "I32")
ROWS: Final = (*FLOATS, "I8")
"""Types of the file; a table in int8 has no scale, its vectors are only ever normalized."""


@dataclass(frozen=True)
class TokenTable:
    """Where the rows of all tokens are stored."""

    rows: StoredTensor
    mapping: StoredTensor | None = None
    """The row of each token; None: its id."""
    weights: StoredTensor | None = None
    """A factor for each token; None: 1."""

    @property
    def path(self) -> Path:
        """The file that contains all of them."""
        return self.rows.path

    @property
    def shape(self) -> tuple[int, int]:
        """Number of token ids, and the width of a row."""
        return (self.mapping or self.rows).shape[0], self.rows.shape[1]

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return float32[V, D]: a view if the rows are stored as float32 and nothing else is.

        Args:
            data: uint8[file size], the mapped file.

        Raises:
            ModelWeightsError: the mapping names a row that is not there.
        """
        rows = self.rows.read(data)
        if self.mapping is not None:
            mapping = self.mapping.stored(data)
            wrong = mapping[(mapping < 0) | (mapping >= len(rows))]
            if len(wrong):
                raise ModelWeightsError(
                    f"{self.rows.file}: tensor mapping names row {wrong[0]}; the table has "
                    f"{len(rows)}, counted from 0"
                )
            rows = rows[mapping]
        if self.weights is not None:
            rows = rows * self.weights.read(data)[:, None]
        return rows


def find_table(path: Path, folder: Path) -> TokenTable:
    """Return the table in a file, from its header alone.

    Args:
        path: model.safetensors.
        folder: the model folder; messages name the file relative to it.

    Raises:
        ModelWeightsError: the file is missing or damaged, or has other tensors than a table's.
    """
    stored = list_tensors(path, folder)
    name = next((name for name in TABLE_NAMES if name in stored), None)
    where = path.relative_to(folder).as_posix()
    if name is None:
        raise ModelWeightsError(f"{where}: tensor {' or '.join(TABLE_NAMES)} is missing")
    mapping = weights = None
    if name == TABLE_NAMES[1]:
        mapping, weights = stored.get("mapping"), stored.get("weights")
    for other, tensor in stored.items():
        if tensor not in (stored[name], mapping, weights):
            raise ModelWeightsError(
                f"{where}: tensor {show(other)} {list(tensor.shape)} is left over"
            )
    table = TokenTable(stored[name], mapping, weights)
    table.rows.check(name, (-1, -1), ROWS)
    if mapping is not None:
        mapping.check("mapping", (-1,), INTEGERS)
    if weights is not None:
        weights.check("weights", table.shape[:1], FLOATS)
    return table


@dataclass(frozen=True)
class TokenWeights:
    """Where a sparse model without a transformer stores a weight for each token."""

    weights: StoredTensor

    @property
    def path(self) -> Path:
        """The file that contains them."""
        return self.weights.path

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return float32[V, 1]; see `TokenTable.read`.

        Raises:
            ModelWeightsError: a weight is below 0, or not finite.
        """
        values = self.weights.read(data)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ModelWeightsError(
                f"{self.weights.file}: tensor {TOKEN_WEIGHTS} has a number that is no weight of a "
                "token; expected: finite numbers of at least 0"
            )
        return values[:, None]


def find_token_weights(path: Path, folder: Path) -> TokenWeights:
    """Return the weights of a `SparseStaticEmbedding`; see `find_table`.

    Raises:
        ModelWeightsError: the file is missing or damaged, or has other tensors.
    """
    stored = list_tensors(path, folder)
    if list(stored) != [TOKEN_WEIGHTS]:
        where = path.relative_to(folder).as_posix()
        names = ", ".join(map(show, list(stored)[:10])) or "nothing"
        raise ModelWeightsError(f"{where}: holds {names}; expected: {TOKEN_WEIGHTS}")
    stored[TOKEN_WEIGHTS].check(TOKEN_WEIGHTS, (-1,), FLOATS)
    return TokenWeights(stored[TOKEN_WEIGHTS])

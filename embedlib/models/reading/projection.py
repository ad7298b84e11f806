"""A matrix at the end of a transformer's class, computed behind the pooling."""

from __future__ import annotations

from typing import Final

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.config_file import family_of, flattened
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.traits import read_integer
from embedlib.models.spec import Dense, Module, Pooling, PoolingMode

LINEAR_POOLINGS: Final[tuple[PoolingMode, ...]] = (
    "cls", "mean", "mean_sqrt_len", "weighted_mean", "last_token",
)  # fmt: skip
"""Those that give the same before a matrix without bias and behind it."""


def read_projection(config: JsonObject, hidden_size: int) -> tuple[Dense, str] | None:
    """Return the matrix as a module behind the pooling; None if the family has none.

    Args:
        config: config.json.
        hidden_size: width of the vectors before it.

    Returns:
        the module, and the name of its tensor without `.weight` and the model's prefix.
    """
    row = family_of(config).projection
    if row is None:
        return None
    features = read_integer(flattened(config), row.features)
    dense = Dense(
        in_features=hidden_size, out_features=features, has_bias=False, activation="identity"
    )
    return dense, row.tensor


def check_commutes(pooling: Module, config: JsonObject) -> None:
    """Reject a pooling that gives something else before the matrix than behind it.

    Raises:
        ModelUnsupportedError: the message names the pooling.
    """
    assert isinstance(pooling, Pooling), "modules start with a Pooling; a bug in embedlib"
    if len(pooling.modes) > 1 or pooling.modes[0] not in LINEAR_POOLINGS:
        raise ModelUnsupportedError(
            f"{config.name}: the class ends in a matrix for every token, and the pooling is "
            f"{', '.join(pooling.modes)}; accepted: one of {', '.join(LINEAR_POOLINGS)}"
        )

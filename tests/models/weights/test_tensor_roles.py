"""Which roles a model has: those that a part of it takes from others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Dense
from embedlib.models.weights.tensor_roles import encoder_shapes, linear_roles, module_shapes


@pytest.mark.parametrize(
    ("variant", "part", "linear", "others"),
    [
        # The matrices of experts are kept in the model's precision, with what chooses them.
        ("nomic_bert-moe", "experts", "q k v o", "router experts_up experts_down"),
        ("lfm2", "convolutions", "up down gate conv_in conv_out", "conv"),
    ],
)
def test_what_takes_the_place_of_a_part_of_a_layer_stands_alone(
    variant: str, part: str, linear: str, others: str, tiny_folder: Callable[[str], Path]
) -> None:
    encoder = read_model_files(tiny_folder(variant)).spec.encoder
    layers = getattr(encoder, part).layers
    assert 0 < len(layers) < encoder.num_layers
    for layer in layers:
        place = f"layers.{layer}."
        roles = [role for role in linear_roles(encoder) if role.startswith(place)]
        assert roles == [f"{place}{leaf}" for leaf in linear.split()]
        stems = {role.split(".")[2] for role in encoder_shapes(encoder) if role.startswith(place)}
        assert stems == {*linear.split(), *others.split(), "attention_norm", "mlp_norm"}


@pytest.mark.parametrize("width", [4, 3])
def test_a_residual_of_another_width_has_a_matrix(width: int) -> None:
    dense = Dense(
        in_features=4, out_features=width, has_bias=False, activation="identity", has_residual=True
    )
    expected = {"weight": (width, 4)} | ({} if width == 4 else {"residual.weight": (width, 4)})
    assert module_shapes(dense) == expected

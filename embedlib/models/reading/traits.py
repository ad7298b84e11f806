"""Reads the traits of a family: a constant of its row, or the value of a key of config.json."""

from __future__ import annotations

from embedlib.models.families.row import Key
from embedlib.models.reading.config_keys import ACTIVATIONS_BY_NAME
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.spec import Activation


def optional_integer(config: JsonObject, trait: Key | None, minimum: int = 1) -> int | None:
    """Return a trait that is an integer or null; None if the family does not have it."""
    if trait is None:
        return None
    return config.optional_integer(trait.name, trait.default, minimum)


def read_integer(config: JsonObject, trait: int | Key) -> int:
    """Return a trait that is a positive integer; reject null."""
    return trait if isinstance(trait, int) else config.integer(trait.name, trait.default)


def read_activation(config: JsonObject, trait: Activation | Key) -> Activation:
    """Return a trait that is an activation."""
    if isinstance(trait, str):
        return trait
    return config.choice(trait.name, ACTIVATIONS_BY_NAME, trait.default)


def read_number(config: JsonObject, trait: float | Key) -> float:
    """Return a trait that is a positive number; reject null."""
    if isinstance(trait, float):
        return trait
    if trait.name in config.values:
        return config.number(trait.name)
    return float(trait.default)


def optional_number(config: JsonObject, trait: Key | None) -> float | None:
    """Return a trait that is a positive number; None if it is null or the family has none."""
    if trait is None:
        return None
    return config.optional_number(trait.name) if trait.name in config.values else trait.default


def read_boolean(config: JsonObject, trait: bool | Key) -> bool:
    """Return a trait that is a boolean."""
    if isinstance(trait, bool):
        return trait
    if trait.default:  # classes take null for false, or as missing: it depends on the release
        config.check_fixed(trait.name, (True, False))
    return config.boolean(trait.name, trait.default)

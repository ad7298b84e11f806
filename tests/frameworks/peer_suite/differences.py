"""Which of the peer's tests do not count, and which differ on purpose, each with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping

INTERNALS: Mapping[str, str] = {
    "test_prompt_length_calculation": "reads a private cache of the transformer module",
    "routes_through_module_call": "spies on the call of the torch module",
}
"""Tests that look inside of the peer's classes: a pattern of their names, and at what."""

NO_SUCH_MODULE = "modules of torch beyond those of docs/models.md are refused"
OUTPUT_NONE = "output_value=None is refused: one output at a time"
RANGES = "precision int8 and uint8 need ranges that were given, not those of the call's own texts"
FLOAT64 = "weights in float64 are refused"
MESSAGE = "the words of a message, or a line in the log"

DIFFERENCES: Mapping[str, str] = {
    r"test_encode_quantization\[u?int8-": RANGES,
    r"test_empty_encode\[(None|64|128)-u?int8-": RANGES,
    "test_prompt_output_value_None": OUTPUT_NONE,
    r"test_encode_truncate\[None-": OUTPUT_NONE,
    "test_pooling_respects_include_prompt": OUTPUT_NONE,
    # But those Router tests whose call fails there, too, or is made without the Router.
    r"test_router_(?!save_load_with_multiple|load_with_config\[False|route_mappings_save_load|"
    "save_with_safe)": NO_SUCH_MODULE,
    "test_dense_load_and_save_in_other_precisions": FLOAT64,
    "test_static_embedding.py::test_unsupported_modality": MESSAGE,
    "test_third_party_module_with_strict_load_signature": NO_SUCH_MODULE,
    "test_private_load_with_module_classes": NO_SUCH_MODULE,
    r"test_safetensors\[<lambda>[1345]\]": NO_SUCH_MODULE,
    r"test_load_activation_fn_from_kwargs\[.*(Tanh|Softmax)\]": "Sigmoid and Identity only",
    "per_call_processing_kwargs": "processing_kwargs is refused: max_seq_length sets the limit",
    "test_encode_numpy_2d_string_array": "encode takes texts, no pairs",
    r"test_encode_quantization\[error-": MESSAGE,
    "test_rank_convert_kwargs_deprecated": MESSAGE,
    "test_get_model_kwargs": MESSAGE,
    r"test_model.py::test_prompts$": MESSAGE,
}
"""Tests that embedlib fails on purpose: a pattern of their names, and the line of
docs/migrating.md."""


def reason_for(name: str, patterns: Mapping[str, str]) -> str | None:
    """Return the reason of the first pattern that is found in a test's name."""
    return next((reason for regex, reason in patterns.items() if re.search(regex, name)), None)

"""The library openvino; every module of this package takes it from here, without its telemetry."""

from embedlib.engines.openvino.telemetry import import_without_telemetry

import_without_telemetry()

import openvino as ov  # noqa: E402 - only now
from openvino import opset15 as op  # noqa: E402

__all__ = ["op", "ov"]

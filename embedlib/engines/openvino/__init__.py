"""The CPU engine: float32, the reference every other engine is checked against."""

from embedlib.engines.openvino.telemetry import import_without_telemetry

# Before any module of this package imports openvino.
import_without_telemetry()

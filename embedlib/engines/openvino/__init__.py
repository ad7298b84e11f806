"""The CPU engine. In float32 it is the reference that every other engine is checked against."""

from embedlib.engines.openvino.telemetry import import_without_telemetry

# This must run before any module of this package imports openvino.
import_without_telemetry()

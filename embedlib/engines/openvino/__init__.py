"""The CPU engine: float32, the reference every other engine is checked against."""

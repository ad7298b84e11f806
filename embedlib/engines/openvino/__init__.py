"""The CPU engine. In float32 it is the reference that every other engine is checked against."""

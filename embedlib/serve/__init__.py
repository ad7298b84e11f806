"""`embedlib serve`: the models of this process over HTTP, in the languages of many clients."""

from embedlib.serve.create import create_app
from embedlib.serve.options import ServeOptions
from embedlib.serve.tracing import Tracing, open_tracing

__all__ = ["ServeOptions", "Tracing", "create_app", "open_tracing"]

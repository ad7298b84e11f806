"""`embedlib serve`: the models of this process over HTTP, in the languages of many clients."""

from embedlib.serve.create import create_app
from embedlib.serve.options import ServeOptions

__all__ = ["ServeOptions", "create_app"]

"""pytest plugin: inference of sentence-transformers' classes by embedlib.

Loading, saving and module lists stay the peer's. Each call of encode, similarity, predict or rank
saves the model's state to a folder, and an Embedder or Reranker of that folder answers.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer

from embedlib import Embedder, Reranker

METHODS: dict[type, tuple[str, ...]] = {
    SentenceTransformer: (
        *("encode", "encode_query", "encode_document"),
        *("similarity", "similarity_pairwise"),
    ),
    CrossEncoder: ("predict", "rank"),
}

INNER = ("encode", "similarity", "similarity_pairwise", "predict")
"""Methods that compute; the others call these. A test that replaces one of them with its own
function never reaches it, and is none of embedlib's."""

MAX_OPEN = 4


class Shim:
    """The open Embedders and Rerankers, and what each test did."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.results: dict[str, dict[str, Any]] = {}
        self._open: OrderedDict[tuple[str, int | None], tuple[Any, Any]] = OrderedDict()

    def count(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the peer's method, counted."""

        @wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            return method(*args, **kwargs)

        return counted

    def replace(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method in place of the peer's: embedlib's, of a model with this one's state."""

        @wraps(method)
        def replaced(model: Any, *args: Any, **kwargs: Any) -> Any:
            if type(model) not in METHODS:  # a subclass for other kinds of vectors
                return method(model, *args, **kwargs)
            self.num_calls += 1
            return getattr(self._twin(model), name)(*args, **kwargs)

        return replaced

    def _twin(self, model: Any) -> Any:
        dim = getattr(model, "truncate_dim", None)
        folder = tempfile.TemporaryDirectory()
        model.save(folder.name, create_model_card=False)
        key = (_digest(Path(folder.name)), dim)
        if key not in self._open:
            kind = Embedder if isinstance(model, SentenceTransformer) else Reranker
            options = {} if dim is None else {"truncate_dim": dim}
            # With its folder, which an Embedder reads again for per-token vectors.
            self._open[key] = (kind(folder.name, on_truncate="ignore", **options), folder)
        self._open.move_to_end(key)
        while len(self._open) > MAX_OPEN:
            twin, _ = self._open.popitem(last=False)[1]
            twin.close()
        return self._open[key][0]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count the calls of a test; fixtures included."""
        self.num_calls = 0
        result = yield
        self.results[item.nodeid]["num_calls"] = self.num_calls
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test: that of its call, unless its fixtures fail."""
        if report.when == "call" or not report.passed:
            message = str(report.longrepr).splitlines()[-1:] if report.failed else []
            entry = {"outcome": report.outcome, "message": "".join(message)}
            self.results.setdefault(report.nodeid, {}).update(entry)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(folder)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that __main__ passes."""
    parser.addoption("--inference-by", choices=("peer", "embedlib"), default="embedlib")
    parser.addoption("--results", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Replace the methods, or count them only."""
    shim = Shim()
    config.pluginmanager.register(shim, "shim")
    for kind, names in METHODS.items():
        for name in names:
            method = kind.__dict__[name]
            if config.getoption("--inference-by") == "embedlib":
                setattr(kind, name, shim.replace(name, method))
            elif name in INNER:
                setattr(kind, name, shim.count(method))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results."""
    shim: Any = session.config.pluginmanager.get_plugin("shim")
    session.config.getoption("--results").write_text(json.dumps(shim.results, indent=1))

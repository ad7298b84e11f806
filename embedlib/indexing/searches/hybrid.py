"""The second ranking of a hybrid search: which one it is, and what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal, TypeAlias, TypeGuard, cast

from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.errors import ConfigError, SinkError, shown
from embedlib.indexing.embedders import (
    QueryEmbedder,
    SparseEmbedder,
    check_embedder,
)
from embedlib.indexing.sinks.abilities import TextSink
from embedlib.indexing.sinks.protocol import Sink, SinkState
from embedlib.indexing.sparse_rows import (
    can_hold,
    check_stored,
    has_made,
    sparse_sink,
    stored_sparse,
)
from embedlib.indexing.stored_model import naming_the_moved
from embedlib.session.arguments import config_beside
from embedlib.vectors.sparse import SparseVector

Hybrid: TypeAlias = bool | Literal["sparse", "text"]
"""Which second ranking a search asks; True: sparse vectors where the rows have them, else words."""
Asked: TypeAlias = SparseVector | str
"""What a second ranking is asked for a question: its sparse vector, or its words."""
Second: TypeAlias = Callable[[list[str]], Sequence[Asked]]
"""Makes of questions what a second ranking is asked."""

_WAY = (
    "load it with full_text (embedlib index --full-text LANGUAGE), which embeds nothing again, "
    "or leave hybrid out"
)


def can_index_text(sink: Sink) -> TypeGuard[TextSink]:
    """Whether a destination can index the words of its rows."""
    return hasattr(sink, "search_text")


def text_sink(sink: Sink) -> TextSink:
    """Return a destination as one that indexes the words of its rows.

    Raises:
        SinkError: it cannot.
    """
    if not can_index_text(sink):
        raise SinkError(
            f"{sink.name} cannot index words; leave full_text (--full-text) out, or choose a "
            "destination of Postgres, edge: or qdrant://"
        )
    return sink


def check_hybrid(hybrid: object, sparse: object) -> None:
    """Check what a caller says of hybrid search.

    Raises:
        ConfigError: it is no value of `Hybrid`, or a sparse model would not be used.
    """
    is_kind = isinstance(hybrid, str) and hybrid in ("sparse", "text")
    if not isinstance(hybrid, bool) and not is_kind:
        raise ConfigError(f"hybrid = {shown(hybrid)}; it must be True, False, 'sparse' or 'text'")
    if sparse is not None and (hybrid is False or hybrid == "text"):
        raise ConfigError("sparse is for hybrid search; pass hybrid=True as well")


def open_second(
    hybrid: Hybrid,
    sparse: SparseEmbedder | str | None,
    sink: Sink,
    state: SinkState,
    embedder: QueryEmbedder,
    config: Config | None,
    owned: ExitStack,
) -> Second | None:
    """Return what asks the second ranking; None: there is none.

    Args:
        hybrid: which one; True: sparse vectors where the rows have them, else full text.
        sparse: the model of the sparse vectors; None: the stored name is loaded.
        sink: what is searched.
        state: what it holds.
        embedder: makes the other vectors, and perhaps both.
        config: of the embedder.
        owned: closes a model that is loaded here.

    Raises:
        SinkError: the rows have no such ranking, or another model made their sparse vectors.
        EmbedlibError: a model cannot be loaded.
    """
    if hybrid is False:
        return None
    if hybrid == "sparse" or sparse is not None or (state.sparse is not None and hybrid != "text"):
        model = _find_sparse(sparse, sink, state, embedder, config, owned)
        if isinstance(model, Embedder):
            return lambda questions: model.encode_query(questions, output_value="sparse")
        return lambda questions: [
            model.encode_query(question, output_value="sparse") for question in questions
        ]
    check_has_text(sink, state, needs_text=hybrid == "text")
    return list


def check_has_text(sink: Sink, state: SinkState, *, needs_text: bool) -> None:
    """Refuse a destination without a full-text index.

    Args:
        sink: what is searched.
        state: what it holds.
        needs_text: whether sparse vectors would not do.

    Raises:
        SinkError: it has none; says how to make one.
    """
    if state.full_text is not None:
        return
    if can_index_text(sink):
        what = "no full-text index" if needs_text else "no sparse vectors and no full-text index"
        raise SinkError(f"{sink.name} holds {what}, which hybrid search needs; {_WAY}")
    if not needs_text and can_hold(sink):
        stored_sparse(state, sink.name)  # raises, with the way to load them
    raise SinkError(
        f"{sink.name} cannot index words, which hybrid search needs; leave hybrid (--hybrid) out, "
        "or choose a destination of Postgres, edge: or qdrant://"
    )


def _find_sparse(
    given: SparseEmbedder | str | None,
    sink: Sink,
    state: SinkState,
    embedder: QueryEmbedder,
    config: Config | None,
    owned: ExitStack,
) -> SparseEmbedder:
    sparse_sink(sink)
    stored = stored_sparse(state, sink.name)
    if given is None and has_made(embedder, stored):  # one model makes both
        return cast(SparseEmbedder, embedder)
    if given is None or isinstance(given, str):
        beside = config_beside(config, "max_active_dims")
        with naming_the_moved(sink.name, None if given else stored.model, "sparse= of Search"):
            sparse: SparseEmbedder = owned.enter_context(
                Embedder(given or stored.model, config=beside)
            )
    else:
        check_embedder(given, SparseEmbedder, "sparse")
        sparse = given
    check_stored(sparse, stored, sink.name)
    return sparse

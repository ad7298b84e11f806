"""A change of model while searches go on: `index(..., replace=True)`, and `drop_old`.

The rows of the new model are loaded beside those that searches find, by an ordinary load: it may be
killed and run again. When it has ended, they are checked and take the place of the others in one
step. What was found before is kept until `drop_old`, and searches that were opened before the step
go on with it. The destination itself says how far all this is.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from embedlib.errors import SinkError
from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.options import IndexOptions
from embedlib.indexing.replacement_checks import NEIGHBOURS, RowSample, compare
from embedlib.indexing.report import IndexReport
from embedlib.indexing.sinks.opening import check_is_sink, open_sink
from embedlib.indexing.sinks.protocol import Sink, SinkState, Target, Tell
from embedlib.indexing.sinks.replaceable import (
    ReplaceableSink,
    can_replace,
    models_of,
    replaceable,
)
from embedlib.indexing.stored_model import stands_beside


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Rows that are loaded beside others, to take their place.

    Attributes:
        sink: what searches find.
        new: where the load writes.
        state: of what searches find; None: nothing yet.
        target: of the load.
        options: of the load, as the caller gave them.
        tell: takes a line for the user.
        sample: gets the rows of the load, and keeps some for the checks.
    """

    sink: ReplaceableSink
    new: ReplaceableSink
    state: SinkState | None
    target: Target
    options: IndexOptions
    tell: Tell
    sample: RowSample = field(default_factory=RowSample)

    @property
    def named_by(self) -> Sink:
        """What says how the documents were named: the rows that are there."""
        return self.new if self.state is None else self.sink

    @property
    def load_options(self) -> IndexOptions:
        """Options for the load beside: rows that an earlier, killed run left there must go."""
        return replace(self.options, delete_missing=True, max_delete=1.0)

    def conclude(self, report: IndexReport, embedder: TextEmbedder) -> None:
        """Check the new rows, and let searches find them.

        Raises:
            SinkError: a check failed, and searches go on with what they found before.
        """
        options = self.options
        found = compare(
            self.new,
            None if self.state is None else self.sink,
            embedder,
            report,
            options.max_delete if options.delete_missing else 0.0,
            self.sample.rows,
        )
        name, model = self.sink.name, self.target.model
        if found.problem is not None:
            now = "nothing" if self.state is None else f"those of {self.state.model!r}"
            raise SinkError(
                f"{name}: the rows of {model!r} are loaded beside, and searches still find {now}: "
                f"{found.problem}"
            )
        if found.overlap is not None:
            self.tell(
                f"{name}: of the documents among the {NEIGHBOURS} rows nearest to each of "
                f"{found.num_sampled} sampled rows, both models find {found.overlap:.0%}"
            )
        self.new.switch()
        kept = ""
        if self.state is not None:
            kept = f"; those of {self.state.model!r} are kept until embedlib drop-old"
        self.tell(f"{name}: searches that begin now find the rows of {model!r}{kept}")


def start_replacement(
    sink: Sink, embedder: TextEmbedder, target: Target, options: IndexOptions, tell: Tell
) -> Replacement | None:
    """Find out what a load with `replace` has to do; None: the rows are of this model already.

    Raises:
        SinkError: the destination cannot be switched, keeps rows of an earlier switch, or is being
            changed to another model.
    """
    found = replaceable(sink)
    state = found.inspect()
    if state is not None and _is_made_by(state, embedder, target):
        if options.recreate:
            _give_up(found, target, options, tell)
        tell(f"{found.name} holds rows of {target.model!r} already; they are brought up to date")
        return None
    kept = found.old()
    if kept is not None:
        raise SinkError(
            f"{found.name} still keeps the {kept.num_rows:,} rows of {kept.model!r}, which were "
            "searched before; remove them first: embedlib drop-old, or embedlib.drop_old"
        )
    built = built_state(found)
    if built is not None and not options.recreate and not _is_made_by(built, embedder, target):
        raise SinkError(
            f"{found.name} is being changed to {built.model!r} with {built.dim} dimensions, of "
            f"which {built.num_rows:,} rows are loaded; go on with that model and the same "
            "options, or pass recreate=True (--recreate) to drop these rows and change to "
            f"{target.model!r} with {target.dim} dimensions instead"
        )
    if built is None:  # nothing, or no row yet of whatever model
        target = replace(target, recreate=True)
    if state is not None and target.full_text is None:
        target = replace(target, full_text=state.full_text)
    return Replacement(
        sink=found, new=found.beside(), state=state, target=target, options=options, tell=tell
    )


def built_state(sink: Sink) -> SinkState | None:
    """Return what an unfinished change of model has loaded; None: no row.

    Raises:
        SinkError: the destination cannot be switched.
    """
    with closing(replaceable(sink).beside()) as beside:
        state = beside.inspect()
    return state if state is not None and state.num_rows > 0 else None


def _give_up(sink: ReplaceableSink, target: Target, options: IndexOptions, tell: Tell) -> None:
    """Drop what a change to another model has loaded; without a row, the next one may be any."""
    try:
        beside = sink.beside()
    except SinkError:  # what cannot be switched has nothing beside
        return
    with closing(beside):
        built = beside.inspect()
        if built is None or built.num_rows == 0:
            return
        are = "would be" if options.dry_run else "are"
        tell(f"{sink.name}: the {built.num_rows:,} rows of {built.model!r} beside {are} dropped")
        if not options.dry_run:
            beside.begin(target, tell)


def _is_made_by(state: SinkState, embedder: TextEmbedder, target: Target) -> bool:
    """Whether rows are of the models of a load, also if in another precision of the same gate."""
    return stands_beside(embedder, state) and models_of(state)[1] == models_of(target)[1]


def drop_old(destination: str | Sink) -> int:
    """Remove the rows that a destination keeps since its model was changed.

    Searches that were opened before the change, and go on with these rows, end with
    `ReplacedError`: open them again first.

    Args:
        destination: a URL, or a `Sink`, which stays open.

    Returns:
        how many rows were removed; 0: there were none.

    Raises:
        SinkError: the destination cannot be used, or has a writer now.
    """
    check_is_sink(destination)
    if isinstance(destination, str):
        with closing(open_sink(destination)) as opened:
            return drop_old(opened)
    if not can_replace(destination):
        raise SinkError(
            f"{destination.name} keeps no old rows: it cannot hold rows of two models at a time"
        )
    kept = destination.old()
    destination.drop_old()
    return 0 if kept is None else kept.num_rows


def other_rows(sink: Sink) -> dict[str, SinkState]:
    """Return what a destination holds that searches do not find: "beside" and "old"."""
    if not can_replace(sink):
        return {}
    found = {"old": sink.old()}
    with suppress(SinkError):  # it cannot be switched, or they cannot be read
        found["beside"] = built_state(sink)
    return {key: state for key, state in found.items() if state is not None}

"""`MeasuredModel`: a model's files, and the embedder, reranker or classifier that runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike

from embedlib.classifier import Classifier
from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import Engine
from embedlib.fidelity.outputs import NUM_ROWS_PER_QUERY, Embedded, embed
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.engine_folder import file_hashes, model_fingerprint
from embedlib.models.known_models import KnownModel
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.progress.phases import Watch, ignore_progress
from embedlib.progress.screens import Reading
from embedlib.reranker import Reranker


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model as users load it: files, options, and the prompts known by its hub name."""

    files: ModelFiles
    """The files as read with the options: `max_seq_tokens` truncates texts."""
    known: KnownModel
    config: Config
    fingerprint: str = ""
    """Of the files when they were opened: a report of them must not say that of others."""
    watch: Watch = ignore_progress
    """Shows how far embedding is."""
    longest_tokens: int | None = None
    """No text that is measured is longer; None: it may have `max_seq_tokens`."""
    memory_share: int = 1
    """Measuring takes at most one of so many parts of the free memory."""

    def for_texts(self, texts: FidelityTexts) -> MeasuredModel:
        """Return the model with a bound for the longest of these texts: a token has a byte or more.

        Pairs, prompts and templates count too.
        """
        spec = self.files.spec
        own = (self.config.prompts, self.config.examples, self.config.template, self.known)
        lengths = [
            max((len(text.encode(errors="replace")) for text in some), default=0)
            for some in (texts.queries, texts.documents)
        ]
        longest = sum(lengths) + len(repr((*own, spec.prompts, spec.suffix)).encode())
        return replace(self, longest_tokens=longest)

    @property
    def planned_files(self) -> ModelFiles:
        """The files, for a memory plan: with the longest text that is measured as the limit."""
        spec = self.files.spec
        longest = min(spec.max_seq_tokens, self.longest_tokens or spec.max_seq_tokens)
        return replace(self.files, spec=replace(spec, max_seq_tokens=longest))

    @property
    def kind(self) -> type[Embedder] | type[Reranker] | type[Classifier]:
        """The class that loads the model.

        A head is a reranker's if it has a template, or one score and no chat template.
        """
        head = self.files.spec.head
        if head is None:
            return Embedder
        is_of_pairs = len(head.labels) == 1 and not head.has_chat_template
        return Reranker if head.template or is_of_pairs else Classifier

    def embed(self, engine: Engine, texts: FidelityTexts, activity: str = "Embedding") -> Embedded:
        """Return the rows that an engine computes for texts, and close the engine.

        Long texts are truncated without a warning.

        Args:
            engine: computes the rows.
            texts: the texts.
            activity: what goes on, for `watch`.
        """
        config = replace(self.config, on_truncate="ignore")
        tokenizer = load_tokenizer(self.files)
        with self.kind.from_engine(
            engine, self.files.spec, tokenizer, config, known=self.known
        ) as session:
            total = None if self.kind is Reranker else len(texts.all)
            self.watch(
                activity,
                "texts" if total else "pairs",
                lambda: Reading(done=session.stats().num_texts, total=total),
            )
            return embed(session, texts)

    def row_texts(self, texts: FidelityTexts) -> tuple[str, ...]:
        """Return the text that each row belongs to."""
        if self.kind is Reranker:
            return tuple(query for query in texts.queries for _ in range(NUM_ROWS_PER_QUERY))
        return texts.all


def open_model(
    model: str | PathLike[str], config: Config, watch: Watch = ignore_progress
) -> MeasuredModel:
    """Find a model and read its files, including the head if it has one.

    Args:
        model: a folder, a hub name, or `package:NAME`.
        config: the options.
        watch: shows how far embedding is.

    Raises:
        ConfigError: the model is an engine directory, or has fewer positions than
            `max_seq_tokens`.
        ModelError: the model does not exist, or embedlib does not support it.
    """
    opened = OpenedModel.find(model, config)
    files = opened.read_source()
    return MeasuredModel(
        files=files,
        known=opened.known,
        # A report is of whole vectors: "auto" goes by it for every length of them.
        config=replace(config, truncate_dim=None),
        fingerprint=model_fingerprint(files, file_hashes(config)),
        watch=watch,
    )

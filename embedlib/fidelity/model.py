"""A model to be measured: its files, and how an engine's rows become its outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike

from embedlib.classifier import Classifier
from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import Engine
from embedlib.fidelity.outputs import Embedded, embed, row_texts
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.known_models import KnownModel
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.reranker import Reranker


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model as users hold it, with the prompts that are known of it."""

    files: ModelFiles
    """Its texts are cut where the options say."""
    known: KnownModel
    config: Config

    @property
    def kind(self) -> type[Embedder] | type[Reranker] | type[Classifier]:
        """The class users load it with. One score means pairs, unless it has a chat template."""
        head = self.files.spec.head
        if head is None:
            return Embedder
        is_of_pairs = len(head.labels) == 1 and not head.has_chat_template
        return Reranker if head.template or is_of_pairs else Classifier

    def embed(self, engine: Engine, texts: FidelityTexts) -> Embedded:
        """Return the rows that an engine makes of texts, and close it.

        Long texts are cut without a warning.
        """
        config = replace(self.config, on_truncate="ignore")
        tokenizer = load_tokenizer(self.files)
        with self.kind.from_engine(
            engine, self.files.spec, tokenizer, config, known=self.known
        ) as session:
            return embed(session, texts)

    def row_texts(self, texts: FidelityTexts) -> tuple[str, ...]:
        """Return the text that each row is about."""
        return row_texts(self.kind, texts)


def open_model(model: str | PathLike[str], config: Config) -> MeasuredModel:
    """Find a model and read its files, with their head where they have one.

    Args:
        model: a folder, a hub name, or `package:NAME`.
        config: the options.

    Raises:
        ConfigError: it is an engine directory, or the model cannot keep `max_seq_tokens`.
        ModelError: there is no such model, or it is not understood.
    """
    opened = OpenedModel.find(model, config)
    return MeasuredModel(files=opened.read_source(), known=opened.known, config=config)

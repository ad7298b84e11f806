"""A model to be measured: its files, and what makes vectors of an engine's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike

from embedlib.classifier import Classifier
from embedlib.config import Config
from embedlib.embedder import Embedder
from embedlib.engines.base import Engine
from embedlib.fidelity.outputs import Embedded, embed, row_texts
from embedlib.fidelity.texts import FidelityTexts
from embedlib.models.compiled.engine_folder import check_not_compiled, source_on_hub
from embedlib.models.hub import find_model
from embedlib.models.known_models import KnownModel, known_model
from embedlib.models.known_rerankers import template_of
from embedlib.models.reading.files import ModelFiles, is_scoring_model, read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.reranker import Reranker
from embedlib.session.loading import limit_length


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model as users hold it, with the prompts that are known of it."""

    files: ModelFiles
    """Its texts are cut where the options say."""
    known: KnownModel
    config: Config

    @property
    def kind(self) -> type[Embedder] | type[Reranker] | type[Classifier]:
        """What it is used with. One number is a pair's, unless it is asked with a chat template."""
        head = self.files.spec.head
        if head is None:
            return Embedder
        is_of_pairs = len(head.labels) == 1 and not head.has_chat_template
        return Reranker if head.template or is_of_pairs else Classifier

    def embed(self, engine: Engine, texts: FidelityTexts) -> Embedded:
        """Return the rows that an engine makes of texts, and close it.

        Long texts are cut without a word.
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
    folder = find_model(model, config)
    check_not_compiled(folder.path)
    folder = source_on_hub(folder)
    is_known = folder.revision is not None
    template = config.template or (template_of(folder.name) if is_known else None)
    with_head = template is not None or is_scoring_model(folder.path)
    files = read_model_files(folder.path, with_head=with_head, template=template)
    if is_known:
        files = replace(files, hub_name=folder.name, hub_revision=folder.revision)
    if config.max_seq_tokens is not None:
        spec = limit_length(files.spec, load_tokenizer(files), config)
        files = replace(files, spec=spec)
    known = known_model(folder.name) if is_known else KnownModel()
    return MeasuredModel(files=files, known=known, config=config)

"""How long a text may be, by a model's tokenizer alone; no weights are loaded."""

from __future__ import annotations

from os import PathLike
from time import perf_counter
from typing import Literal

import tokenizers

from embedlib.batching.stats import Meter
from embedlib.config import Config
from embedlib.models.opening import OpenedModel
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.session.call_factory import CallFactory
from embedlib.session.tokenizers import make_tokenizers


class TextMeasure:
    """The tokenizer of a model, and the room that a text has beside its prompt.

    It gives the same numbers as an `Embedder` of the model.
    """

    def __init__(self, name: str | PathLike[str], config: Config) -> None:
        """Read the files of a model.

        Args:
            name: a folder, a hub name or `package:NAME`.
            config: the options.

        Raises:
            ModelError: there is no such model, or it makes no vectors.
            ConfigError: an option does not fit the model.
        """
        with OpenedModel.described(name, config) as opened:
            files = opened.read_files(with_head=False)
            self.tokenizer: tokenizers.Tokenizer = load_tokenizer(files)
            spec = opened.limit_length(files, self.tokenizer).spec
        self._calls = CallFactory(spec, config, opened.known)
        given = (spec, self.tokenizer, config, Meter(perf_counter))
        self._tokenizer, _ = make_tokenizers(*given)

    def count_room(self, role: Literal["document"], /) -> int:
        """Return how many tokens a text may have: the limit minus prompt and special tokens."""
        return self._tokenizer.count_room(self._calls.prompts.resolve(role=role))

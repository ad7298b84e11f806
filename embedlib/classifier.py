"""Classifier: labels of texts with their scores, and the single score of a reward model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast, overload

from embedlib.batching.tokenizing.pairs import PairTokenizer
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.batching.usage import Usage
from embedlib.config import Config
from embedlib.engines.base import Lane
from embedlib.errors import ConfigError, shown
from embedlib.models.prompts import Prompt
from embedlib.session.arguments import check_each, check_texts
from embedlib.session.call import Call
from embedlib.session.checked import checked
from embedlib.session.label_scores import LabelScores, label_scores
from embedlib.session.scoring import (
    Activation,
    Scores,
    ScoringSession,
    activate,
    lane_of,
    lane_of_pairs,
)
from embedlib.session.zero_shot import ZeroShot


class Classifier(ScoringSession):
    """Texts to labels with scores, in this process.

    Any number of threads may call any method. A single text runs ahead of bulk work, in `zero_shot`
    if it has few labels. Close it, or use it as a context manager, to free the engine early; the
    end of the program does so too.

    Texts are used unchanged: for a reward model, apply its chat template first.
    """

    _activity = "Classifying"

    _tokenizer: Tokenizer

    def _check_config(self, config: Config) -> None:
        super()._check_config(config)
        for name in ("prompts", "default_prompt_name"):
            if getattr(config, name) is not None:
                raise ConfigError(
                    f"{name} = {shown(getattr(config, name))}; a Classifier takes texts as they "
                    "are, put the words in front of them yourself"
                )

    def _open(self) -> None:
        head = self._head
        if head.template is not None:
            raise ConfigError("this model asks about pairs of texts; load it with Reranker")
        self._tokenizer = Tokenizer(
            self.tokenizer,
            self.spec.max_seq_tokens,
            on_truncate=self.config.on_truncate,
            excludes_prompt=False,
            meter=self._meter,
        )
        self._start()

    @overload
    def predict(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        texts: str,
        top_k: int | None = ...,
        *,
        raw_scores: bool = ...,
        show_progress_bar: bool | None = ...,
        usage: Usage | None = ...,
    ) -> LabelScores: ...

    @overload
    def predict(
        self,
        texts: Iterable[str],
        top_k: int | None = ...,
        *,
        raw_scores: bool = ...,
        show_progress_bar: bool | None = ...,
        usage: Usage | None = ...,
    ) -> list[LabelScores]: ...

    @checked
    def predict(
        self,
        texts: str | Iterable[str],
        top_k: int | None = None,
        *,
        raw_scores: bool = False,
        show_progress_bar: bool | None = None,
        usage: Usage | None = None,
    ) -> LabelScores | list[LabelScores]:
        """Return the labels of texts with their scores, in the order of the texts.

        Args:
            texts: a text or any iterable of texts.
            top_k: keep only this many labels of each text; None: all.
            raw_scores: return the model's outputs without softmax or sigmoid.
            show_progress_bar: None shows one on a terminal if the call takes longer than 2 seconds.
            usage: an `embedlib.Usage()`; the call adds its tokens, truncated texts and seconds.

        Returns:
            For each text a list of {"label", "score"}, the highest score first; for a single str
            that list alone.

        Raises:
            InputError: a text is not a str or not valid Unicode; the message names its row.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: `top_k` is out of range.
            EngineRunError: a batch failed.
            ClosedError: the Classifier was closed.
        """
        rows, is_single = check_texts("texts", texts)
        numbers = self._run(self._call(rows, is_single, usage), show_progress_bar)
        results = label_scores(activate(numbers, self._activation(raw_scores)), self.labels, top_k)
        return results[0] if is_single else results

    @overload
    async def apredict(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        texts: str,
        top_k: int | None = ...,
        *,
        raw_scores: bool = ...,
        usage: Usage | None = ...,
    ) -> LabelScores: ...

    @overload
    async def apredict(
        self,
        texts: Iterable[str],
        top_k: int | None = ...,
        *,
        raw_scores: bool = ...,
        usage: Usage | None = ...,
    ) -> list[LabelScores]: ...

    @checked
    async def apredict(
        self,
        texts: str | Iterable[str],
        top_k: int | None = None,
        *,
        raw_scores: bool = False,
        usage: Usage | None = None,
    ) -> LabelScores | list[LabelScores]:
        """Return what `predict` returns without blocking the event loop.

        Cancelling the task drops the texts that are not being computed yet.
        """
        rows, is_single = check_texts("texts", texts)
        numbers = await self._arun(self._call(rows, is_single, usage))
        results = label_scores(activate(numbers, self._activation(raw_scores)), self.labels, top_k)
        return results[0] if is_single else results

    @overload
    def zero_shot(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        texts: str,
        candidate_labels: str | Iterable[str],
        hypothesis_template: str = ...,
        *,
        multi_label: bool = ...,
        show_progress_bar: bool | None = ...,
        usage: Usage | None = ...,
    ) -> LabelScores: ...

    @overload
    def zero_shot(
        self,
        texts: Iterable[str],
        candidate_labels: str | Iterable[str],
        hypothesis_template: str = ...,
        *,
        multi_label: bool = ...,
        show_progress_bar: bool | None = ...,
        usage: Usage | None = ...,
    ) -> list[LabelScores]: ...

    @checked
    def zero_shot(
        self,
        texts: str | Iterable[str],
        candidate_labels: str | Iterable[str],
        hypothesis_template: str = "This example is {}.",
        *,
        multi_label: bool = False,
        show_progress_bar: bool | None = None,
        usage: Usage | None = None,
    ) -> LabelScores | list[LabelScores]:
        """Return how well each of some labels describes each text, with a model of inference.

        Such a model was trained to tell whether a hypothesis follows from a text; the scores are
        those of transformers' pipeline `zero-shot-classification`.

        Args:
            texts: a text or any iterable of texts.
            candidate_labels: the labels, words of your own; a str has commas between them.
            hypothesis_template: the hypothesis, with `{}` for the label; other braces are doubled.
            multi_label: score every label on its own; otherwise the scores of a text sum to 1.
            show_progress_bar: None shows one on a terminal if the call takes longer than 2 seconds.
            usage: an `embedlib.Usage()`; the call adds its tokens, truncated texts and seconds.

        Returns:
            For each text a list of {"label", "score"}, the highest score first; for a single str
            that list alone.

        Raises:
            what `predict` raises.
            InputError: a hypothesis leaves no room for the text.
            ConfigError: the template has no place for the label.
            ModelUnsupportedError: the model has no label for a hypothesis that follows.
        """
        asked = ZeroShot(texts, candidate_labels, hypothesis_template, multi_label, self.labels)
        return asked.result(self._run(self._zero_shot_call(asked, usage), show_progress_bar))

    @overload
    async def azero_shot(  # type: ignore[overload-overlap] # a str is an iterable of str, too
        self,
        texts: str,
        candidate_labels: str | Iterable[str],
        hypothesis_template: str = ...,
        *,
        multi_label: bool = ...,
        usage: Usage | None = ...,
    ) -> LabelScores: ...

    @overload
    async def azero_shot(
        self,
        texts: Iterable[str],
        candidate_labels: str | Iterable[str],
        hypothesis_template: str = ...,
        *,
        multi_label: bool = ...,
        usage: Usage | None = ...,
    ) -> list[LabelScores]: ...

    @checked
    async def azero_shot(
        self,
        texts: str | Iterable[str],
        candidate_labels: str | Iterable[str],
        hypothesis_template: str = "This example is {}.",
        *,
        multi_label: bool = False,
        usage: Usage | None = None,
    ) -> LabelScores | list[LabelScores]:
        """Return what `zero_shot` returns without blocking the event loop.

        Cancelling the task drops the pairs that are not being computed yet.
        """
        asked = ZeroShot(texts, candidate_labels, hypothesis_template, multi_label, self.labels)
        return asked.result(await self._arun(self._zero_shot_call(asked, usage)))

    def _zero_shot_call(self, asked: ZeroShot, usage: Usage | None) -> Call:
        tokenizer = PairTokenizer(
            self.tokenizer,
            self.spec,
            on_truncate=self.config.on_truncate,
            meter=self._meter,
            keeps_second=True,
        ).with_limit(self.max_seq_length)
        lane = Lane.BULK
        if asked.is_single:
            lane = lane_of_pairs(len(asked.pairs), self.config.max_queued_texts)
        return Call(
            texts=asked.pairs,
            lane=lane,
            tokenize=partial(tokenizer, prompt=""),
            usage=usage,
            rows_per_text=len(asked.labels),
            waits_if_full=True,
        )

    @checked
    def predict_scores(
        self,
        texts: str | Iterable[str],
        *,
        raw_scores: bool = False,
        show_progress_bar: bool | None = None,
        usage: Usage | None = None,
    ) -> Scores:
        """Return the scores as an array, in the order of `labels`.

        Args:
            texts: a text or any iterable of texts.
            raw_scores: return the model's outputs without softmax or sigmoid.
            show_progress_bar: None shows one on a terminal if the call takes longer than 2 seconds.
            usage: an `embedlib.Usage()`; the call adds its tokens, truncated texts and seconds.

        Returns:
            float32[N, num_labels] for N texts, float32[num_labels] for a single str.

        Raises:
            what `predict` raises.
        """
        rows, is_single = check_texts("texts", texts)
        numbers = self._run(self._call(rows, is_single, usage), show_progress_bar)
        scores = activate(numbers, self._activation(raw_scores))
        return cast(Scores, scores[0]) if is_single else scores

    @checked
    async def apredict_scores(
        self, texts: str | Iterable[str], *, raw_scores: bool = False, usage: Usage | None = None
    ) -> Scores:
        """Return what `predict_scores` returns without blocking the event loop."""
        rows, is_single = check_texts("texts", texts)
        numbers = await self._arun(self._call(rows, is_single, usage))
        scores = activate(numbers, self._activation(raw_scores))
        return cast(Scores, scores[0]) if is_single else scores

    def _call(self, texts: list[str], is_single: bool, usage: Usage | None) -> Call:
        check_each("text", texts)
        tokenize = partial(self._tokenizer, prompt=Prompt())
        return Call(texts=texts, lane=lane_of(is_single), tokenize=tokenize, usage=usage)

    def _activation(self, raw_scores: bool) -> Activation:
        return "identity" if raw_scores else self._head.activation

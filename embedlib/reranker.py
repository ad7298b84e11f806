"""Reranker: scores how well documents answer a query, with a model that reads both together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from embedlib.batching.tokenizing.pairs import PairTokenizer
from embedlib.batching.tokenizing.tokenizer_thread import Tokenize
from embedlib.batching.usage import Usage
from embedlib.config import Config
from embedlib.errors import ConfigError, ModelUnsupportedError, shown
from embedlib.models.known_rerankers import template_names
from embedlib.models.prompts import Prompts
from embedlib.session.arguments import (
    check_documents,
    check_pairs,
    import_torch,
    one_of,
)
from embedlib.session.call import Call
from embedlib.session.checked import checked
from embedlib.session.score_types import RankedDocument, as_async_predict, as_predict
from embedlib.session.scoring import (
    Activation,
    Scores,
    ScoringSession,
    activate,
    check_activation,
    lane_of,
    lane_of_pairs,
)
from embedlib.vectors.arrays import Vectors

Ranking = list[RankedDocument]
"""The best document first."""


class Reranker(ScoringSession):
    """Pairs of texts to scores, in this process.

    Any number of threads may call any method. `rank` with few documents and `predict` of a single
    pair run ahead of bulk work. Close it, or use it as a context manager, to free the engine early;
    the end of the program does so too.
    """

    _activity = "Ranking"

    _tokenizer: PairTokenizer

    def _check_config(self, config: Config) -> None:
        super()._check_config(config)
        for name, prompt in (config.prompts or {}).items():
            if "{task}" in prompt or "{text}" in prompt:
                raise ConfigError(
                    f"prompts[{name!r}] = {shown(prompt)}; {{task}} and {{text}} are places in an "
                    "Embedder's prompts, a Reranker puts a prompt in front of the query as it is"
                )

    def _open(self) -> None:
        self._template = self._head.template
        if self._template is None and self._head.has_chat_template:
            raise ModelUnsupportedError(
                "the tokenizer has a chat template, which sentence-transformers fills with a pair; "
                "it is a program and is not run here: give template= "
                f"({', '.join(template_names())}), or take Classifier for a model of single texts"
            )
        self._prompts = Prompts(self.spec, self.config)
        self._tokenizer = PairTokenizer(
            self.tokenizer, self.spec, on_truncate=self.config.on_truncate, meter=self._meter
        )
        num_around = self._tokenizer.num_special_tokens
        if self.max_seq_length <= num_around:
            is_given = self.config.max_seq_tokens is not None
            raise ConfigError(
                f"{'max_seq_tokens' if is_given else 'max_seq_length'} = {self.max_seq_length}; "
                f"this model puts {num_around} tokens around every pair, it needs more than these"
            )
        self._start()

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts of queries by name: of the model folder and of the options."""
        return MappingProxyType(self._prompts.by_name)

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt of queries that is used by default."""
        return self._prompts.default_name

    # Scoring: names and order of the arguments are those of sentence-transformers' CrossEncoder.

    @checked
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        device: str | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        instruction: str | None = None,
        raw_scores: bool = False,
        usage: Usage | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
    ) -> Ranking:
        """Sort documents by how well they answer a query.

        Args:
            query: the query.
            documents: the candidates.
            top_k: keep only this many; None: all.
            return_documents: put the text of each document beside its score.
            prompt_name: name of the prompt of the query; None: the default one.
            prompt: the prompt as text; for a model with a template, its instruction, unless empty.
            batch_size: accepted as a hint; batches are made by token budget.
            show_progress_bar: None shows one on a terminal if the call takes longer than 2 seconds.
            activation_fn: "sigmoid", "identity", "softmax", a function of float32[N, 1] or a torch
                module; None: the model's own.
            device: None or "cpu".
            pool: None.
            chunk_size: None.
            instruction: fills the place for one in the template; None: the default one, "": none.
            raw_scores: return the model's outputs without an activation.
            usage: an `embedlib.Usage()`; the call adds its tokens, truncated pairs and seconds.
            convert_to_numpy: without effect, a score is a float; earlier releases of
                sentence-transformers have it.
            convert_to_tensor: the same.

        Returns:
            {"corpus_id", "score"} of each document, the best first; equal scores in input order.

        Raises:
            InputError: a text is not a str or not valid Unicode; the message names its row.
            SequenceTooLongError: with on_truncate="error".
            ConfigError: an argument is out of range, or the model has several scores for a pair.
            EngineRunError: a batch failed.
            ClosedError: the Reranker was closed.
        """
        documents = check_documents(query, documents)
        self._check_can_rank()
        activation = self._activation(activation_fn, raw_scores)
        tokenize = self._tokenize(prompt_name, prompt, instruction)
        call = self._rank_call(query, documents, tokenize, usage)
        numbers = self._run(call, show_progress_bar)
        return _ranking(activate(numbers, activation), documents, top_k, return_documents)

    @checked
    async def arank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        activation_fn: Activation | None = None,
        instruction: str | None = None,
        raw_scores: bool = False,
        usage: Usage | None = None,
    ) -> Ranking:
        """Return what `rank` returns without blocking the event loop.

        Cancelling the task drops the documents that are not being computed yet.
        """
        documents = check_documents(query, documents)
        self._check_can_rank()
        activation = self._activation(activation_fn, raw_scores)
        tokenize = self._tokenize(prompt_name, prompt, instruction)
        numbers = await self._arun(self._rank_call(query, documents, tokenize, usage))
        return _ranking(activate(numbers, activation), documents, top_k, return_documents)

    @as_predict
    @checked
    def predict(
        self,
        inputs: Iterable[Sequence[str]] | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        instruction: str | None = None,
        raw_scores: bool = False,
        usage: Usage | None = None,
        processing_kwargs: Mapping[str, NoReturn] | None = None,
        sentences: Iterable[Sequence[str]] | Sequence[str] | None = None,
    ) -> Any:
        """Return the scores of pairs of texts, in their order.

        Args:
            inputs: a pair, or any iterable of pairs.
            prompt_name: name of the prompt of each first text; None: the default one.
            prompt: the prompt as text; for a model with a template, its instruction, unless empty.
            batch_size: accepted as a hint; batches are made by token budget.
            show_progress_bar: None shows one on a terminal if the call takes longer than 2 seconds.
            activation_fn: "sigmoid", "identity", "softmax", a function of float32[N, num_labels] or
                a torch module; None: the model's own.
            apply_softmax: make the scores of a pair sum to 1, if there are several.
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor; needs torch.
            device: None or "cpu".
            pool: None.
            chunk_size: None.
            instruction: fills the place for one in the template; None: the default one, "": none.
            raw_scores: return the model's outputs without an activation.
            usage: an `embedlib.Usage()`; the call adds its tokens, truncated pairs and seconds.
            processing_kwargs: None.
            sentences: the former name of `inputs`.

        Returns:
            float32[N] for N pairs and a float32 for a single one; float32[N, num_labels] and
            float32[num_labels] if a pair has several scores.

        Raises:
            what `rank` raises.
            QueueFullError: of a single pair: `max_queued_texts` queries are queued already.
        """
        if convert_to_tensor or not convert_to_numpy:
            import_torch()  # before the work: it may be missing
        pairs, is_single = check_pairs(one_of(inputs, sentences))
        activation = self._activation(activation_fn, raw_scores)
        tokenize = self._tokenize(prompt_name, prompt, instruction)
        call = Call(texts=pairs, lane=lane_of(is_single), tokenize=tokenize, usage=usage)
        numbers = self._run(call, show_progress_bar)
        scores = self._scores(numbers, activation, apply_softmax)
        if convert_to_tensor or not convert_to_numpy:
            tensor = import_torch().from_numpy(scores)
            if is_single:
                return tensor[0]
            return tensor if convert_to_tensor else list(tensor)
        return scores[0] if is_single else scores

    @as_async_predict
    @checked
    async def apredict(
        self,
        inputs: Iterable[Sequence[str]] | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        activation_fn: Activation | None = None,
        apply_softmax: bool | None = False,
        instruction: str | None = None,
        raw_scores: bool = False,
        usage: Usage | None = None,
    ) -> Any:
        """Return what `predict` returns without blocking the event loop.

        Cancelling the task drops the pairs that are not being computed yet.
        """
        pairs, is_single = check_pairs(inputs)
        activation = self._activation(activation_fn, raw_scores)
        tokenize = self._tokenize(prompt_name, prompt, instruction)
        call = Call(texts=pairs, lane=lane_of(is_single), tokenize=tokenize, usage=usage)
        numbers = await self._arun(call)
        scores = self._scores(numbers, activation, apply_softmax)
        return scores[0] if is_single else scores

    def _tokenize(
        self, prompt_name: str | None, prompt: str | None, instruction: str | None
    ) -> Tokenize:
        """Return the function that tokenizes the pairs of a call.

        Raises:
            ConfigError: there is no such prompt, or no place for an instruction.
        """
        text = self._prompts.resolve(prompt_name, prompt).prefix
        if self._template is None:
            if instruction is not None:
                raise ConfigError(
                    f"instruction = {shown(instruction)}; this model has no template with a place "
                    "for it, pass prompt= to put a text in front of the query"
                )
            return partial(self._tokenizer, prompt=text)
        if instruction is not None and prompt is not None:
            raise ConfigError("prompt is the instruction of this model's template; pass one")
        given = text or None if instruction is None else instruction
        if given is not None and not self._template.takes_instruction:
            raise ConfigError("this model's template has no place for an instruction or prompt")
        return partial(
            self._tokenizer, prompt=self._template.instruction if given is None else given
        )

    def _activation(self, activation_fn: Activation | None, raw_scores: bool) -> Activation:
        if not raw_scores:
            if activation_fn is None:
                return self._head.reranker_activation
            return check_activation(activation_fn, self.num_labels)
        if activation_fn not in (None, "identity"):
            raise ConfigError("raw_scores=True means no activation; leave out activation_fn")
        return "identity"

    def _scores(
        self, numbers: Vectors, activation: Activation, apply_softmax: bool | None
    ) -> Scores:
        scores = activate(numbers, activation)
        if self.num_labels == 1:
            return scores[:, 0]
        return activate(scores, "softmax") if apply_softmax else scores

    def _check_can_rank(self) -> None:
        if self.num_labels != 1:
            raise ConfigError(
                f"this model has {self.num_labels} scores for a pair ({', '.join(self.labels)}); "
                "rank needs one, predict returns them all, and Classifier (embedlib classify) "
                "those of single texts"
            )

    def _rank_call(
        self, query: str, documents: list[str], tokenize: Tokenize, usage: Usage | None
    ) -> Call:
        pairs = [(query, document) for document in documents]
        lane = lane_of_pairs(len(pairs), self.config.max_queued_texts)
        return Call(texts=pairs, lane=lane, tokenize=tokenize, usage=usage, waits_if_full=True)


def _ranking(
    scores: Scores, documents: list[str], top_k: int | None, return_documents: bool
) -> Ranking:
    order = np.argsort(-scores[:, 0], kind="stable")[:top_k].tolist()
    ranking: Ranking = [{"corpus_id": row, "score": float(scores[row, 0])} for row in order]
    if return_documents:
        for entry in ranking:
            entry["text"] = documents[entry["corpus_id"]]
    return ranking

"""Other libraries on the same files and ids, as the parent drives them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from embedlib.engines.machine import Machine
from embedlib.vectors.arrays import Vectors
from tests.acceptance.gpu.models import Shape, shape_of
from tests.acceptance.gpu.texts import Ids, lengths_of, percentiles, texts_of

Result = dict[str, Any]

BULK_TOKENS: Final = 65_536
"""Of one pass over different texts, as many as embedlib is given."""
TINY_BULK_TOKENS: Final = 8192
BATCH_TOKENS: Final = (8192, 16_384, 32_768)
"""Tried for a peer that is given batches; it then runs at its best."""


class PeerCalls(ABC):
    """The calls that the parent can make: ids in host memory to float32 vectors in host memory."""

    packages: ClassVar[tuple[str, ...]]
    """Distributions whose versions decide the speed."""
    _shape: Shape

    def __init__(self, device: str) -> None:
        self._device = device
        self._is_tiny = device == "cpu"
        self._num_tokens = TINY_BULK_TOKENS if self._is_tiny else BULK_TOKENS

    def load(self, model: str, folder: str, **options: Any) -> Result:
        """Load a seeded model from its folder."""
        begin = time.perf_counter()
        self._shape = shape_of(model, is_tiny=self._is_tiny)
        self._load(folder, **options)
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "versions": Machine().versions(self.packages)}

    def prepare(self, lengths: str) -> Result:
        """Find the best settings; what is returned is written with the result."""
        return {}

    def bulk(self, lengths: str, seconds: float) -> Result:
        """Measure one job of texts that takes about `seconds`."""
        texts = self._texts(lengths)
        begin = time.perf_counter()
        self._embed(texts)
        passes = max(1, round(seconds / (time.perf_counter() - begin)))
        begin = time.perf_counter()
        self._embed(texts * passes)
        taken = time.perf_counter() - begin
        return {
            "tokens_per_s": passes * sum(map(len, texts)) / taken,
            "texts_per_s": passes * len(texts) / taken,
        }

    def query(self, num_tokens: int, seconds: float) -> Result:
        """Measure single texts, one after the other."""
        text = texts_of([num_tokens], self._vocab_size)
        self._embed(text)
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end or not taken:
            self._embed(text)
            taken.append(time.perf_counter() - begin)
        return percentiles(taken)

    def vectors(self, path: str, lengths: list[int]) -> None:
        """Write float32[N, D] of texts of these lengths."""
        np.save(path, self._embed(texts_of(lengths, self._vocab_size)))

    def _texts(self, lengths: str) -> list[Ids]:
        drawn = lengths_of(lengths, self._num_tokens, self._shape.max_seq_tokens)
        return texts_of(drawn, self._vocab_size)

    @property
    def _vocab_size(self) -> int:
        return int(self._shape.config["vocab_size"])

    @abstractmethod
    def _load(self, folder: str, **options: Any) -> None: ...

    @abstractmethod
    def _embed(self, texts: Sequence[Ids]) -> Vectors:
        """Return float32[N, D] in the order of the texts."""


class SentenceTransformersCalls(PeerCalls):
    """sentence-transformers in bfloat16; it is given ready batches, sorted by length."""

    packages = ("sentence-transformers", "transformers", "torch")

    def _load(self, folder: str, **options: Any) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(
            folder,
            device=self._device,
            local_files_only=True,
            model_kwargs={"dtype": torch.bfloat16},
        ).eval()
        self._batch_tokens = BATCH_TOKENS[0]

    def prepare(self, lengths: str) -> Result:
        """Find the best size of batches; one that does not fit into memory ends the search."""
        import torch

        texts = self._texts(lengths)[::2]
        rates: dict[int, float] = {}
        for size in BATCH_TOKENS:
            self._batch_tokens = size
            try:
                self._embed(texts)
                begin = time.perf_counter()
                self._embed(texts)
                rates[size] = 1 / (time.perf_counter() - begin)
            except torch.OutOfMemoryError:
                break
        self._batch_tokens = max(rates, key=rates.__getitem__)
        return {"batch_tokens": self._batch_tokens}

    def _embed(self, texts: Sequence[Ids]) -> Vectors:
        import torch

        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        rows: list[Vectors] = []
        with torch.inference_mode():
            start = 0
            while start < len(order):
                end = start + 1
                while end < len(order):
                    if (end + 1 - start) * len(texts[order[end]]) > self._batch_tokens:
                        break
                    end += 1
                rows.append(self._forward([texts[index] for index in order[start:end]]))
                start = end
        vectors = np.empty((len(texts), rows[0].shape[1]), np.float32)
        vectors[order] = np.concatenate(rows)
        return vectors

    def _forward(self, texts: Sequence[Ids]) -> Vectors:
        import torch

        longest = max(map(len, texts))
        ids = torch.zeros((len(texts), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.from_numpy(text)
            mask[row, : len(text)] = 1
        features = {
            "input_ids": ids.to(self._device, non_blocking=True),
            "attention_mask": mask.to(self._device, non_blocking=True),
        }
        vectors: Vectors = self._model(features)["sentence_embedding"].float().cpu().numpy()
        return vectors


class VllmCalls(PeerCalls):
    """vLLM, offline and in this process, with the options its documentation gives for speed.

    Source: vllm 0.26, `LLM.embed` in entrypoints/pooling/offline.py; prompts are
    `TokensPrompt`s.
    """

    packages = ("vllm", "transformers", "torch")

    MEMORY_SHARE: ClassVar = 0.45
    """Of the GPU's memory; embedlib's own process lives beside it."""
    MAX_SEQS: ClassVar = 1024
    MAX_SEQ_TOKENS: ClassVar = 8192

    def _load(self, folder: str, **options: Any) -> None:
        from vllm import LLM
        from vllm.config import PoolerConfig

        pooling = {"cls": "CLS", "last_token": "LAST"}[self._shape.pooling]
        self._llm = LLM(
            model=folder,
            runner="pooling",
            convert="embed",
            dtype="bfloat16",
            pooler_config=PoolerConfig(pooling_type=pooling, use_activation=True),
            # The same texts come again and again: what it kept of them would not be computed.
            enable_prefix_caching=False,
            max_model_len=min(self.MAX_SEQ_TOKENS, self._shape.max_seq_tokens),
            max_num_seqs=self.MAX_SEQS,
            gpu_memory_utilization=self.MEMORY_SHARE,
            **options,
        )

    def _embed(self, texts: Sequence[Ids]) -> Vectors:
        prompts = [{"prompt_token_ids": text.tolist()} for text in texts]
        outputs = self._llm.embed(prompts, use_tqdm=False)
        return np.array([output.outputs.embedding for output in outputs], np.float32)

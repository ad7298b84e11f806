"""The ways to make a vector of a text that are tried, and the vectors that each gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from embedlib.embedder import Embedder
from embedlib.errors import EngineUnsupportedError
from embedlib.models.known_models import read_entries
from embedlib.models.opening import longest_sequence
from embedlib.models.spec import Normalize, Pooling
from embedlib.vectors.similarity import normalize

LIMITS: Final = (128, 256, 384, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Lengths at which servers and libraries cut."""
POOLINGS: Final = ("mean", "cls", "last_token")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What `encode` is told of the prompt."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    said: str

    @classmethod
    def literal(cls, text: str) -> Prompt:
        """Return the prompt of this text."""
        return cls(arguments={"prompt": text}, said=f"prompt {text!r}" if text else "no prompt")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to make the vectors."""

    prompt: Prompt
    max_tokens: int
    cut: Literal["end", "start"] = "end"
    """The side of a long text that is left out."""
    pooling: str | None = None
    """None: the model's own."""

    def differences(self, asked: Setting) -> Iterator[str]:
        """Yield in words what another setting has to change to become this one."""
        if self.prompt != asked.prompt:
            yield self.prompt.said
        if self.max_tokens != asked.max_tokens or self.cut != asked.cut:
            side = ", long texts without their beginning" if self.cut == "start" else ""
            yield f"max_seq_tokens={self.max_tokens}{side}"
        if self.pooling != asked.pooling:
            yield f"{self.pooling} pooling in place of the model's"


class Maker:
    """Makes vectors of the same texts, by one setting after the other."""

    def __init__(
        self, embedder: Embedder, texts: Sequence[str], dim: int, *, normalizes: bool
    ) -> None:
        """Take the model and the texts.

        Args:
            embedder: the model; its length limit is changed.
            texts: all texts.
            dim: how many numbers of a vector are kept.
            normalizes: whether vectors are scaled to unit length even if the model does not.
        """
        self._embedder = embedder
        self._texts = texts
        self._dim = dim
        self._normalizes = normalizes

    def vectors(self, setting: Setting, rows: Sequence[int]) -> NDArray[np.float32]:
        """Return float32[n, D]: the vectors of these rows."""
        self._embedder.max_seq_length = setting.max_tokens
        texts = [self._texts[row] for row in rows]
        arguments = dict(setting.prompt.arguments)
        if setting.cut == "start":
            return np.concatenate([self._end_vector(text, arguments, setting) for text in texts])
        if setting.pooling is not None:
            tokens = self._embedder.encode(texts, output_value="token_embeddings", **arguments)
            pooled = np.stack([_pool(each, setting.pooling) for each in tokens])[:, : self._dim]
            is_unit = self._embedder.spec.is_normalized or self._normalizes
            return normalize(pooled) if is_unit else pooled
        return self._encode(texts, arguments)

    def own_prompts(self) -> list[Prompt]:
        """Return no prompt, and those of the model."""
        named = [
            Prompt(arguments={"prompt_name": name}, said=f"prompt_name={name!r} ({text!r})")
            for name, text in self._embedder.prompts.items()
            if text
        ]
        return [Prompt.literal(""), *named]

    def other_prompts(self) -> list[Prompt]:
        """Return prompts of other models: those of a copy whose folder names none, mostly."""
        own = set(self._embedder.prompts.values())
        return [Prompt.literal(text) for text in known_prompts() if text not in own]

    def limits(self, rows: Sequence[int]) -> list[int]:
        """Return the lengths at which these texts may be cut; the last one is the model's limit."""
        longest = longest_sequence(self._embedder.spec)
        most = max(len(self._embedder.tokenizer.encode(self._texts[row]).ids) for row in rows)
        # A prompt makes a text longer.
        return [*(limit for limit in LIMITS if limit < min(longest, 2 * most)), longest]

    def cutting_limits(self, row: int) -> range:
        """Return the length limits that may cut a text; there is none for a blank one."""
        tokenizer = self._embedder.tokenizer
        least = tokenizer.num_special_tokens_to_add(is_pair=False) + 1
        most = min(
            len(tokenizer.encode(self._texts[row]).ids), longest_sequence(self._embedder.spec)
        )
        return range(least, most + 1)

    def poolings(self) -> list[str]:
        """Return the poolings that the model's vectors could be made by instead of its own."""
        spec = self._embedder.spec
        first, *rest = spec.modules
        plain = isinstance(first, Pooling) and first.include_prompt and len(first.modes) == 1
        if not plain or spec.encoder.is_table or not all(isinstance(m, Normalize) for m in rest):
            return []
        try:
            self._embedder.encode(["a"], prompt="", output_value="token_embeddings")
        except EngineUnsupportedError:
            return []
        return [name for name in POOLINGS if (name,) != spec.pooling.modes]

    def _encode(self, texts: list[str], arguments: Mapping[str, Any]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._embedder.encode(
            texts,
            truncate_dim=self._dim,
            normalize_embeddings=self._normalizes,
            **arguments,
        )
        return vectors

    def _end_vector(
        self, text: str, arguments: Mapping[str, Any], setting: Setting
    ) -> NDArray[np.float32]:
        """Return float32[1, D]: the vector of the last tokens of a text, as many as are kept."""
        tokenizer = self._embedder.tokenizer
        found = tokenizer.encode(text, add_special_tokens=False)
        num_kept = setting.max_tokens - tokenizer.num_special_tokens_to_add(is_pair=False)
        if len(found.ids) <= num_kept:
            return self._encode([text], arguments)
        # The prompt is lost, too: it stands at the beginning.
        return self._encode([text[found.offsets[-num_kept][0] :]], {"prompt": ""})


def known_prompts() -> list[str]:
    """Return the prompts of all known models, each once."""
    found: dict[str, None] = {}
    for entry in read_entries():
        found |= dict.fromkeys(entry.get("prompts", {}).values())
        template, _, behind = entry.get("query_template", "").partition("{text}")
        if template and not behind:
            found[template.replace("{task}", entry["default_task"])] = None
    return list(found)


def _pool(tokens: NDArray[np.float32], pooling: str) -> NDArray[np.float32]:
    """Return float32[H] of float32[L, H]."""
    if pooling == "mean":
        mean: NDArray[np.float32] = tokens.mean(0)
        return mean
    row: NDArray[np.float32] = tokens[0 if pooling == "cls" else -1]
    return row

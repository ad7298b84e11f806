"""A fake engine whose vectors identify its inputs.

Nothing here sleeps or reads the clock: a gate holds batches back until the test releases them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from embedlib.config import Config, Similarity
from embedlib.embedder import Embedder
from embedlib.engines.base import Batch, EngineLimits
from embedlib.errors import EngineOutOfMemoryError
from embedlib.models.spec import Encoder, Head, LateInteraction, ModelSpec, Module, Pooling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on

    from embedlib.session.signatures import ConfigOptions

FAKE_DIM = 6
WAIT_SECONDS = 30.0
"""Timeout of every wait, in seconds; a test that reaches it fails."""


def fake_vector(token_ids: Sequence[int], num_prompt_tokens: int = 0) -> NDArray[np.float32]:
    """Return float32[6] that differs for any two short sequences.

    The elements are the first and last id, the length, the sum, the sum weighted by position, and
    the number of prompt tokens. So a test notices swapped, truncated or mixed-up sequences.
    """
    ids = np.array(list(token_ids), np.int64)
    weighted = int((ids * np.arange(1, len(ids) + 1)).sum()) % (1 << 20)
    values = [ids[0], ids[-1], len(ids), ids.sum(), weighted, num_prompt_tokens]
    return np.array(values, np.float32)


class FakeEngine:
    """An engine without a model: `fake_vector` of every sequence, at once or when released."""

    def __init__(
        self,
        *,
        is_padded: bool = False,
        is_per_token: bool = False,
        max_batch_tokens: int = 64,
        num_parallel_batches: int = 1,
        max_inflight_batches: int = 3,
        max_inflight_bulk: int = 2,
        memory_tokens: int | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Make an engine.

        Args:
            is_padded: as in `EngineLimits`, and so are the following five.
            is_per_token: a token's row is the `fake_vector` of the sequence up to it.
            max_batch_tokens: token budget.
            num_parallel_batches: batches computed side by side.
            max_inflight_batches: batches taken at most.
            max_inflight_bulk: bulk batches taken at most.
            memory_tokens: the largest batch that the engine has memory for; None: any.
            wait_seconds: `wait_submitted` fails after this time.
        """
        self._wait_seconds = wait_seconds
        self.limits = EngineLimits(
            embedding_dim=FAKE_DIM,
            is_per_token=is_per_token,
            is_padded=is_padded,
            max_batch_tokens=max_batch_tokens,
            num_parallel_batches=num_parallel_batches,
            max_inflight_batches=max_inflight_batches,
            max_inflight_bulk=max_inflight_bulk,
        )
        self.batches: list[Batch] = []
        """Every batch submitted so far."""
        self.is_closed = False
        self._memory_tokens = memory_tokens
        self._changed = threading.Condition()
        self._is_held = False
        self._held: list[Callable[[], None]] = []
        self._failures: list[Exception] = []
        self._poisoned: set[int] = set()

    def hold(self) -> None:
        """Hold all batches until `release`."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        """Finish all held batches; from now on, finish every batch at once."""
        with self._changed:
            self._is_held = False
            held, self._held = self._held, []
        for on_done in held:
            on_done()

    def release_one(self) -> None:
        """Finish the oldest held batch; continue to hold the others."""
        with self._changed:
            on_done = self._held.pop(0)
        on_done()

    def wait_submitted(self, num_batches: int) -> None:
        """Block until this many batches have been submitted in total.

        Raises:
            AssertionError: if they are not submitted within `WAIT_SECONDS`.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self.batches) >= num_batches, self._wait_seconds
            ):
                raise AssertionError(f"{len(self.batches)} batches came, not {num_batches}")

    def fail_next(self, *errors: Exception) -> None:
        """Make the next batches fail, one per error."""
        with self._changed:
            self._failures += errors

    def poison(self, token_id: int) -> None:
        """Return NaN for every sequence that contains this id."""
        self._poisoned.add(token_id)

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> _FakePending:
        """Record a batch; finish it unless batches are held."""
        assert not self.is_closed, "a batch was submitted after close"
        num_tokens = len(batch.token_ids)
        with self._changed:
            self.batches.append(batch)
            error: Exception | None = self._failures.pop(0) if self._failures else None
            if self._memory_tokens is not None and num_tokens > self._memory_tokens:
                error = EngineOutOfMemoryError(f"{num_tokens} tokens do not fit")
            if self._is_held:
                self._held.append(on_done)
            self._changed.notify_all()
            is_held = self._is_held
        if not is_held:
            on_done()
        return _FakePending(self._compute(batch), error)

    def close(self) -> None:
        """Reject batches from now on."""
        self.is_closed = True

    def _compute(self, batch: Batch) -> NDArray[np.float32]:
        rows = []
        for ids, num_prompt_tokens in zip(_split(batch), batch.num_prompt_tokens, strict=True):
            lengths = range(1, len(ids) + 1) if self.limits.is_per_token else [len(ids)]
            for num_tokens in lengths:
                row = fake_vector(ids[:num_tokens], num_prompt_tokens)
                rows.append(row * np.nan if self._poisoned.intersection(ids) else row)
        return np.array(rows, np.float32)


class _FakePending:
    def __init__(self, vectors: NDArray[np.float32], error: Exception | None) -> None:
        self._vectors = vectors
        self._error = error

    def result(self) -> NDArray[np.float32]:
        if self._error is not None:
            raise self._error
        return self._vectors


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer with one token per byte, whose id is the byte, and no special tokens."""
    # Byte-level BPE writes bytes as printable characters, in this order of its alphabet.
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_vocabulary() -> dict[str, int]:
    """Return a dict of the character that byte-level BPE writes for a byte to that byte.

    Source: `bytes_to_unicode` of GPT-2's encoder.py: printable bytes map to themselves, the others
    to the characters from 256 on.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = {letter: ord(letter) for letter in alphabet if ord(letter) < 256}
    others = [byte for byte in range(256) if chr(byte) not in printable]
    return printable | dict(zip(alphabet[len(printable) :], others, strict=True))


class SpecFields(TypedDict, total=False):
    """The fields of `ModelSpec`, which says what they mean, that `fake_spec` takes."""

    modules: tuple[Module, ...]
    dropped_token_id: int | None
    lowercase: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity: Similarity
    truncate_dim: int | None
    max_active_dims: int | None
    head: Head | None
    late_interaction: LateInteraction | None


def fake_spec(max_seq_tokens: int = 32, **fields: Unpack[SpecFields]) -> ModelSpec:
    """Return a spec for `FakeEngine` and `byte_tokenizer`; `fields` are fields of ModelSpec."""
    encoder = Encoder(
        family="fake",
        vocab_size=256,
        hidden_size=FAKE_DIM,
        num_layers=0,
        num_heads=1,
        num_kv_heads=1,
        head_dim=FAKE_DIM,
        intermediate_size=1,
        activation="gelu",
        is_gated=False,
        norm="layer_norm",
        norm_eps=1e-12,
        norm_placement="post",
        num_positions=1 << 20,
        windows=(),
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_down_bias=True,
    )
    given: SpecFields = {"modules": (Pooling(modes=("mean",)),), **fields}
    return ModelSpec(
        encoder=encoder,
        embedding_dim=FAKE_DIM,
        max_seq_tokens=max_seq_tokens,
        max_seq_tokens_source="fake",
        **given,
    )


def fake_embedder(
    engine: FakeEngine | None = None,
    /,  # `Config` has an `engine`, too
    spec: ModelSpec | None = None,
    **options: Unpack[ConfigOptions],
) -> Embedder:
    """Return an Embedder on a FakeEngine; `options` are fields of `Config`."""
    return Embedder.from_engine(
        engine or FakeEngine(), spec or fake_spec(), byte_tokenizer(), Config(**options)
    )


def _split(batch: Batch) -> list[list[int]]:
    """Return the token ids of every sequence."""
    return [part.tolist() for part in np.split(batch.token_ids, batch.cu_seqlens[1:-1])]

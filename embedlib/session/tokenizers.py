"""The tokenizers of an Embedder, by what its spec and its options say."""

from __future__ import annotations

from tokenizers import Tokenizer as RustTokenizer

from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.config import Config
from embedlib.models.opening import longest_sequence
from embedlib.models.spec import ModelSpec
from embedlib.session.late_interaction import tokenizer_of


def make_tokenizers(
    spec: ModelSpec, tokenizer: RustTokenizer, config: Config, meter: Meter
) -> tuple[Tokenizer, Tokenizer | None]:
    """Return what makes sequences of texts, and what makes those of queries if it differs.

    Raises:
        ModelUnsupportedError: the tokenizer lacks the token that fills up a query.
    """
    if spec.late_interaction is not None:
        given = (spec, tokenizer, config, meter)
        return tokenizer_of("document", *given), tokenizer_of("query", *given)
    of_texts = Tokenizer(
        tokenizer,
        spec.max_seq_tokens,
        on_truncate=config.on_truncate,
        excludes_prompt=not spec.includes_prompt,
        meter=meter,
        num_positions=longest_sequence(spec),
        dropped_token_id=spec.dropped_token_id,
        keeps_parts=spec.encoder.is_table,
    )
    return of_texts, None

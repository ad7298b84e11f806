"""The modules of a head after the transformer, and where their weights are in its files.

A `...ForSequenceClassification` has separate layers for its head. A `...ForCausalLM` that answers
with one of two tokens needs only one row: the difference of the two tokens' rows of the LM head. A
modular head has a folder for each of its modules.

Source: the classes of transformers 5.5, and `LogitScore` of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tokenizers import Tokenizer

from embedlib.errors import ModelUnsupportedError
from embedlib.models.families.row import HeadLayer, Key, SequenceHead
from embedlib.models.families.table import FAMILIES
from embedlib.models.known_rerankers import KnownReranker
from embedlib.models.reading.config_file import architecture_of, family_of
from embedlib.models.reading.json_files import JsonObject, show
from embedlib.models.reading.module_files import output_dim, read_module, read_splade
from embedlib.models.reading.parts import Parts
from embedlib.models.reading.tokenizer_json import TokenizerJson
from embedlib.models.reading.traits import (
    optional_integer,
    read_activation,
    read_boolean,
    read_number,
)
from embedlib.models.spec import Dense, Encoder, LayerNorm, Module, Pooling, PoolingMode

POOLINGS: Final[Mapping[str, PoolingMode]] = {"cls": "cls", "bos": "cls", "mean": "mean"}
"""Values of `classifier_pooling`."""


@dataclass(frozen=True)
class AnswerRows:
    """The source of the single score row of a reranker that answers with tokens."""

    tensor: str | None
    """Name of the LM head's matrix, one row per token; None: the matrix of token embeddings."""
    true_token_id: int
    false_token_id: int | None
    """None: the score is the logit of the true token alone."""
    divisor: float = 1.0
    """The row is divided by it."""


@dataclass(frozen=True)
class VocabularyRows:
    """The matrix of a masked language model's head, one row per token, and its bias."""

    matrix: str
    """Name of the matrix, without `.weight`; a file that ties it does not store it."""
    bias: str | None
    """Another name of the bias than that of the matrix and `.bias`."""
    is_tied: bool
    """Whether the matrix of token embeddings takes its place where it is not stored."""


Tensors = dict[int, str | AnswerRows | VocabularyRows]
"""By position among the modules, where the weights are in the transformer's files."""


def sequence_modules(
    config: JsonObject, encoder: Encoder, num_labels: int
) -> tuple[tuple[Module, ...], Tensors]:
    """Return the modules of a ...ForSequenceClassification, and the names of their tensors."""
    family = family_of(config)
    row = family.sequence_head
    if row is None:
        raise config.refuse("architectures", "a family whose classification head is implemented")
    for key, accepted in row.fixed.items():
        config.check_fixed(key, accepted)
    modules: list[Module] = [_pooling(config, row)]
    tensors: Tensors = {}
    for index, layer in enumerate(row.layers, 1):
        tensors[index] = layer.tensors
        module = _head_layer(config, layer, family.norm_eps, encoder.hidden_size)
        if isinstance(module, Dense) and index == len(row.layers):
            module = replace(module, out_features=num_labels)
        modules.append(module)
    return tuple(modules), tensors


def masked_modules(
    config: JsonObject, encoder: Encoder, strategy: JsonObject
) -> tuple[tuple[Module, ...], Tensors]:
    """Return the modules of a ...ForMaskedLM with SPLADE's pooling, and where their weights are.

    Args:
        config: config.json.
        encoder: read from it.
        strategy: config.json of the SpladePooling.
    """
    family = family_of(config)
    row = family.masked_head
    if row is None:
        able = [name for name, other in FAMILIES.items() if other.masked_head is not None]
        raise config.refuse("model_type", f"for a sparse model {', '.join(able)}")
    modules: list[Module] = []
    tensors: Tensors = {}
    width = encoder.hidden_size
    for index, layer in enumerate(row.layers):
        tensors[index] = layer.tensors
        module = _head_layer(config, layer, family.norm_eps, width)
        if isinstance(module, Dense):
            module = replace(module, out_features=encoder.table_width)
        width = output_dim(module, width)
        modules.append(module)
    has_bias = read_boolean(config, row.has_bias)
    is_tied = config.boolean("tie_word_embeddings", True)
    tensors[len(modules)] = VocabularyRows(row.decoder, row.bias, is_tied)
    modules.append(read_splade(strategy, encoder.vocab_size, has_bias))
    return tuple(modules), tensors


def _head_layer(config: JsonObject, layer: HeadLayer, norm_eps: float | Key, width: int) -> Module:
    """Return a layer of a head whose output is as wide as its input."""
    has_bias = read_boolean(config, layer.has_bias)
    if layer.is_norm:
        return LayerNorm(dim=width, eps=read_number(config, norm_eps), has_bias=has_bias)
    return Dense(
        in_features=width,
        out_features=width,
        has_bias=has_bias,
        activation=read_activation(config, layer.activation),
    )


def pooled_modules(parts: Parts) -> tuple[Module, ...]:
    """Return the modules of a head that sentence-transformers trained module by module."""
    modules = parts.modules
    modules[0][2].check_fixed("include_prompt", (True,))
    kind = modules[-1][0]
    if kind != "Dense":
        raise ModelUnsupportedError(
            f"modules.json: the last module is a {kind}; accepted: a Dense, which makes the scores"
        )
    found: list[Module] = []
    dim = parts.encoder.hidden_size
    for index, (kind, _, config) in enumerate(modules, 1):
        found.append(read_module(kind, config, dim, makes_scores=index == len(modules)))
        dim = output_dim(found[-1], dim)
    return tuple(found)


def answer_modules(
    parts: Parts, logit_score: JsonObject | None, known: KnownReranker | None
) -> tuple[tuple[Module, ...], Tensors]:
    """Return the modules of a ...ForCausalLM that answers, and the matrix rows of its score."""
    config, encoder = parts.config, parts.encoder
    family = family_of(config)
    if family.lm_head is None:
        with_lm_head = [name for name, row in FAMILIES.items() if row.lm_head is not None]
        raise config.refuse("model_type", ", ".join(with_lm_head))
    if logit_score is not None:
        logit_score.check_keys({"true_token_id", "false_token_id", "module_input_name"})
        logit_score.check_fixed("module_input_name", ("causal_logits",))
        true_id = logit_score.integer("true_token_id", minimum=0)
        false_id = logit_score.optional_integer("false_token_id", None)
        for key, value in (("true_token_id", true_id), ("false_token_id", false_id)):
            if value is not None and value >= encoder.vocab_size:
                raise logit_score.refuse(key, f"less than vocab_size = {encoder.vocab_size}")
    elif known is not None and known.true_token is not None:
        path = parts.transformer_dir / "tokenizer.json"
        tokenizer = TokenizerJson.load(path, parts.transformer_dir).tokenizer
        true_id = _token_id(tokenizer, known.true_token)
        false_id = None if known.false_token is None else _token_id(tokenizer, known.false_token)
    else:
        raise ModelUnsupportedError(
            f"{config.name}: {show(architecture_of(config))} scores with the logits of two tokens, "
            "and the folder names neither the tokens nor the prompt; pass template=... "
            "(--template), or load the model by its hub name"
        )
    is_tied = config.boolean("tie_word_embeddings", family.ties_embeddings)
    divisor = 1.0 if known is None or logit_score is not None else known.divisor
    rows = AnswerRows(None if is_tied else family.lm_head, true_id, false_id, divisor)
    dense = Dense(
        in_features=encoder.hidden_size, out_features=1, has_bias=False, activation="identity"
    )
    return (Pooling(modes=("last_token",)), dense), {1: rows}


def _pooling(config: JsonObject, row: SequenceHead) -> Pooling:
    pooling = row.pooling
    mode: PoolingMode = (
        config.choice(pooling.name, POOLINGS, pooling.default)
        if isinstance(pooling, Key)
        else pooling
    )
    skipped = optional_integer(config, row.skipped_token, minimum=0)
    return Pooling(modes=(mode,), skipped_token_id=skipped)


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ModelUnsupportedError(
            f"tokenizer.json: has no token {token!r}, which the template needs as an answer"
        )
    return number

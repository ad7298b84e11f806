"""Reads the head of a reranker, reward model or classifier into modules after a Pooling.

There are three kinds. `...ForSequenceClassification` has separate layers, the last with one row per
label. `...ForCausalLM` answers with one of two tokens: the score is the difference of their logits
at the last token, which is one row of the weights times the last token's vector. A modular head is
a Pooling, and modules as those of an embedding model, the last of which makes the scores.

Source: the classes of transformers 5.5, and `CrossEncoder` of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from embedlib.models.known_rerankers import KnownReranker, known_reranker
from embedlib.models.reading.config_file import architecture_of, check_own_code, family_of
from embedlib.models.reading.head_modules import (
    Tensors,
    answer_modules,
    pooled_modules,
    sequence_modules,
)
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.model_file import has_file
from embedlib.models.reading.parts import Parts
from embedlib.models.reading.settings_file import CHAT_TEMPLATE_NAME
from embedlib.models.reading.tokenizer_classes import PLAIN
from embedlib.models.spec import Dense, Head, Module, PairTemplate, ScoreActivation

SEQUENCE_CLASS: Final = "ForSequenceClassification"
LM_CLASS: Final = "ForCausalLM"
TASKS: Final[Mapping[str, str]] = {
    "sequence-classification": SEQUENCE_CLASS,
    "text-generation": LM_CLASS,
}
"""`transformer_task` of sentence-transformers to the class it loads."""

RERANKER_ACTIVATIONS: Final[Mapping[str, ScoreActivation]] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.Identity": "identity",
}

PASSES_TYPES: Final[Mapping[str, bool]] = {
    "BertTokenizer": True,
    # These do in transformers 4, with which their models were trained, and not in 5.
    "AlbertTokenizer": True,
    "ElectraTokenizer": True,
    "RobertaTokenizer": False,
    "XLMRobertaTokenizer": False,
    PLAIN: False,  # only 5 has it
}
"""Whether a tokenizer class, without "Fast", passes token types to the model."""

PROBLEM_TYPES: Final[Mapping[str, ScoreActivation]] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
"""Source: `TextClassificationPipeline.postprocess` of transformers."""


GENERAL_KEYS: Final = frozenset(
    {
        "__version__", "activation_fn", "default_prompt_name", "model_type", "prompts",
        # the layers that stay float32 when the others use a lower precision
        "keep_in_fp32_modules",
    }
)  # fmt: skip
"""Keys of config_sentence_transformers.json."""


@dataclass(frozen=True, kw_only=True)
class HeadFiles:
    """A head that the reader accepted, and where its weights are."""

    head: Head
    modules: tuple[Module, ...]
    tensors: Tensors
    """Empty for a modular head, whose modules have folders of their own."""


def is_scoring(config: JsonObject) -> bool:
    """Return whether config.json describes a model with a classification head."""
    return architecture_of(config).endswith(SEQUENCE_CLASS)


def own_head(config: JsonObject) -> str | None:
    """Return the tensor of a head that `auto_map` names beside the class of another model.

    jina-reranker-v1 and models that make embeddings may have the same config.json: their weights
    tell what they are. None: there is no such head.
    """
    own = config.child("auto_map").values.get(f"AutoModel{SEQUENCE_CLASS}")
    if own is None or not architecture_of(config).endswith("ForMaskedLM"):
        return None
    family = family_of(config)
    if family.sequence_head is None or not family.implements(f"AutoModel{SEQUENCE_CLASS}", own):
        return None
    return f"{family.sequence_head.layers[-1].tensors}.weight"


def read_head(parts: Parts, template: str | None) -> HeadFiles:
    """Return the head of a reranker or classifier.

    Args:
        parts: its modules are none, a LogitScore, or a Pooling and others.
        template: the name of a known template, for a folder that leaves it out.

    Raises:
        ConfigError: if the template is unknown.
        ModelUnsupportedError: if a key is unknown or missing, or its value is not implemented.
    """
    config, settings, general = parts.config, parts.settings, parts.general
    general.check_keys(GENERAL_KEYS)
    # Those of the chat template count for nothing: a known template takes its place.
    settings.child("processing_kwargs").check_keys({"chat_template"})
    known = None if template is None else known_reranker(template)
    tensors: Tensors = {}
    if any(kind == "Pooling" for kind, *_ in parts.modules):
        found = pooled_modules(parts)
        labels = _labels_of_modules(config, found)
    else:
        logit_score = parts.modules[0][2] if parts.modules else None
        kind = _class_of_task(config, settings, logit_score)
        check_own_code(config, f"AutoModel{kind}")
        if kind == SEQUENCE_CLASS:
            labels = _labels(config)
            found, tensors = sequence_modules(config, parts.encoder, len(labels))
        else:
            labels = ("LABEL_0",)
            found, tensors = answer_modules(parts, logit_score, known)
    head = Head(
        labels=labels,
        activation=_classifier_activation(config, len(labels)),
        reranker_activation=_reranker_activation(config, general, len(labels)),
        template=_template(settings, general, known),
        has_chat_template=not settings.values and has_chat_template(parts),
        has_token_types=_has_token_types(parts),
    )
    return HeadFiles(head=head, modules=found, tensors=tensors)


def _class_of_task(config: JsonObject, settings: JsonObject, logit_score: JsonObject | None) -> str:
    """Return the kind of the model's transformers class, and check that all files agree."""
    architecture = architecture_of(config)
    kind = SEQUENCE_CLASS if logit_score is None else LM_CLASS
    if not settings.values and architecture.endswith(LM_CLASS):
        kind = LM_CLASS
    if not architecture.endswith(kind) and own_head(config) is None:
        check_own_code(config, f"AutoModel{kind}")
        raise config.refuse("architectures", f"one name that ends with {kind}")
    if settings.values and settings.choice("transformer_task", TASKS) != kind:
        names = [task for task, name in TASKS.items() if name == kind]
        raise settings.refuse("transformer_task", ", ".join(names))
    return kind


def _labels(config: JsonObject) -> tuple[str, ...]:
    """Return the names of the labels in the order of the rows.

    If the file does not mention labels there are two, as in transformers. Of a file of another
    class, such as jina-reranker-v1's, CrossEncoder of sentence-transformers 6.2 takes one.
    """
    table = config.child("id2label")
    if "id2label" not in config:
        default = 2 if is_scoring(config) else 1
        return tuple(f"LABEL_{index}" for index in range(config.integer("num_labels", default)))
    ids = [str(index) for index in range(len(table.values))]
    if not ids or set(table.values) != set(ids) or None in table.values.values():
        raise config.refuse("id2label", "a name for every id from 0 on")
    if config.values.get("num_labels") not in (None, len(ids)):
        raise config.refuse("num_labels", f"{len(ids)}, the number of names in id2label")
    names = [str(table.text(index)) for index in ids]
    known = config.child("label2id").values
    for index, name in enumerate(names):
        # The zero-shot pipeline of transformers finds this one by label2id, all else by id2label.
        if name.lower().startswith("entail") and known.get(name, index) != index:
            raise config.refuse("label2id", f"{index} for {name!r}, as in id2label")
    return tuple(names)


def _labels_of_modules(config: JsonObject, modules: Sequence[Module]) -> tuple[str, ...]:
    """Return the names of a modular head's scores; the files name them only by chance.

    Source: `CrossEncoder.num_labels` of sentence-transformers 6.2: the width of the last Dense.
    """
    last = modules[-1]
    assert isinstance(last, Dense), "pooled_modules ends in a Dense; a bug in embedlib"
    if len(config.child("id2label").values) == last.out_features:
        return _labels(config)
    return tuple(f"LABEL_{index}" for index in range(last.out_features))


def _classifier_activation(config: JsonObject, num_labels: int) -> ScoreActivation:
    """Return the activation that the text-classification pipeline of transformers applies."""
    if "problem_type" not in config:
        return "sigmoid" if num_labels == 1 else "softmax"
    activation = config.choice("problem_type", PROBLEM_TYPES)
    return "sigmoid" if activation == "softmax" and num_labels == 1 else activation


def _reranker_activation(
    config: JsonObject, general: JsonObject, num_labels: int
) -> ScoreActivation:
    """Return the activation that CrossEncoder applies; of several settings the newest wins."""
    nested = config.child("sentence_transformers")
    nested.check_keys({"activation_fn", "version"})
    places = [(general, "activation_fn"), (nested, "activation_fn")]
    if "activation_fn" not in nested.values:  # where it is null, the older key is not read
        places.append((config, "sbert_ce_default_activation_function"))
    for place, key in places:
        if key in place:
            return place.choice(key, RERANKER_ACTIVATIONS)
    return "sigmoid" if num_labels == 1 else "identity"


def _has_token_types(parts: Parts) -> bool | None:
    """Return whether transformers passes token types to the model.

    If neither the files nor the tokenizer's class list the model's inputs, transformers 4 passes
    token types and 5 does not: None.
    """
    config, tokenizer_config = parts.config, parts.tokenizer_config
    if parts.encoder.num_token_types < 2:
        return False
    names = tokenizer_config.values.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    kind = tokenizer_config.text("tokenizer_class") or config.text("tokenizer_class")
    usual = family_of(config).tokenizer_class
    passes = PASSES_TYPES.get((kind or usual or "").removesuffix("Fast"))
    if kind is None and usual == PLAIN:  # a file that names it is of transformers 5, others of any
        passes = None
    if names is not None:
        raise tokenizer_config.refuse("model_input_names", "a list of names")
    return passes


def has_chat_template(parts: Parts) -> bool:
    """Return whether the tokenizer has a chat template.

    CrossEncoder fills it with each pair, unless the model was saved with CrossEncoder's own files,
    which then decide.

    Source: `infer_modalities` of sentence-transformers 6.2, base/modules/transformer.py.
    """
    path = parts.transformer_dir / CHAT_TEMPLATE_NAME
    return "chat_template" in parts.tokenizer_config or has_file(path, parts.folder)


def _template(
    settings: JsonObject, general: JsonObject, known: KnownReranker | None
) -> PairTemplate | None:
    """Return the template for pairs, with the folder's instruction if it has one."""
    prompts = general.child("prompts")
    if known is None:
        if "message" in settings.child("modality_config").values:
            raise settings.refuse(
                "modality_config",
                "text alone, since embedlib does not read chat templates; pass template=... "
                "(--template)",
            )
        return None
    default = general.text("default_prompt_name")
    if default is None:
        return known.template
    instruction = prompts.text(default)
    if instruction is None or not known.template.takes_instruction:
        raise general.refuse(
            "default_prompt_name", "null, or the name of the instruction in prompts"
        )
    return replace(known.template, instruction=instruction)

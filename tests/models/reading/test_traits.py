"""No key of config.json is ignored: if it changes, the file is rejected or the vectors change.

The first half checks that every key changes the spec, the second that every field of the spec
changes the vectors. The goldens have the vectors of the unchanged spec.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.engines.base import Batch
from embedlib.errors import ModelUnsupportedError
from embedlib.models.encoder_parts import Experts, PositionBias, RelativePositions, Rope, WideHeads
from embedlib.models.families.row import Key
from embedlib.models.families.table import FAMILIES
from embedlib.models.reading.config_file import check_own_code, family_of, read_encoder
from embedlib.models.reading.config_keys import HARMLESS_KEYS
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.spec import Encoder, ModelSpec
from embedlib.models.weights.load import load_weights
from embedlib.models.weights.tensor_roles import ArraysByRole, encoder_shapes
from embedlib.testing import make_batch
from embedlib.testing.models.table import VARIANTS

if TYPE_CHECKING:
    from conftest import Golden

DEFAULTS = Path(__file__).parents[2] / "goldens" / "defaults.json"

WITHOUT_WINDOW = (*("qwen3", "qwen3-bidirectional", "qwen2-both-ways", "qwen3-voyage", "pplx"),)
COUNTS_ELSEWHERE = {
    # n_positions, of the model's own code, takes precedence.
    ("nomic_bert-both-keys", "max_position_embeddings"),
    # These models have no window.
    *((name, "use_sliding_window") for name in WITHOUT_WINDOW),
    *((name, "max_window_layers") for name in WITHOUT_WINDOW),
    # The encoder is the same with a decoder beside it and without.
    *((name, "is_encoder_decoder") for name in ("t5", "t5-gated")),
    # The width of a matrix behind the transformer, which its tensor must have.
    ("embedding_gemma2_text", "embedding_dim"),
    # layer_types takes precedence.
    ("gemma3_text", "_sliding_window_pattern"),
    # Texts end at the original length; two numbers of the rope matter only behind it.
    *(("ministral3", key) for key in ("max_position_embeddings", "rope_parameters")),
}
"""(variant, key) where the key has no effect, although it has one in other variants."""


def _read(config: dict[str, Any]) -> Encoder | None:
    """Return the encoder, or None if the file is rejected."""
    try:
        return read_encoder(JsonObject("config.json", {"vocab_size": 100, **config}))
    except ModelUnsupportedError:
        return None


def _others(value: Any) -> Iterator[Any]:
    """Yield other values, of the same type and of another type."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        if value:
            yield value * 2
        yield value + 1
    elif isinstance(value, str):
        yield "sigmoid"
    elif isinstance(value, list):
        yield [*value[1:], value[0]] if value[1:] != value[:-1] else value[1:]
    elif isinstance(value, dict):
        for key, inner in value.items():
            for other in _others(inner):
                yield value | {key: other}
    else:
        yield 3.0
    yield {"other": 1}


def _keys(variant: str) -> list[str]:
    """Return the keys of a variant that may change its vectors."""
    config = VARIANTS[variant].config
    row = family_of(JsonObject("config.json", config))
    harmless = HARMLESS_KEYS | row.harmless
    if row.positions == "learned_after_padding":
        harmless -= {"pad_token_id"}
    return [
        key for key in config if key not in harmless and (variant, key) not in COUNTS_ELSEWHERE
    ] + ["model_type"]


def test_keys_that_transformers_and_tinybert_wrote_count_for_nothing() -> None:
    config = VARIANTS["bert"].config
    # Of releases from 2.3 to 4.x, some of which wrote every key.
    whole = {"_num_labels": 5, "eos_token_ids": 0, "tf_legacy_loss": False, "xla_device": None}
    tiny = {"cell": {}, "emb_size": 312, "pre_trained": "", "structure": [], "training": ""}
    assert _read({**config, **whole, **tiny}) == _read(config)
    assert _read(VARIANTS["roberta"].config | tiny) is None


def test_keys_of_published_files_that_no_class_reads_count_for_nothing() -> None:
    names = ("bos_token", "eos_token", "pad_token", "mask_token", "cls_token", "sep_token")
    adapters = {"adapters": {}, "config_map": {}, "fusion_config_map": {}, "fusions": {}}
    cases: dict[str, dict[str, Any]] = {
        # ToolBench_IR_bert_based_uncased, and then m3e and what uniem made later.
        "bert": {
            "adapters": adapters,
            "uniem_embedding_strategy": "last_mean",
            "uniem_pooling_strategy": "last_mean",
        },
        # ChemBERTa; the second of users, from the hub's page.
        "roberta": {"is_gpu": True, "pipeline_tag": "text-classification"},
        # EuroBERT.
        "eurobert": dict.fromkeys(names, "<|x|>"),
        # Qwen2.5.
        "qwen2": {"use_mrope": False},
        # ModernBERT-ja and ruri-v3, then RuModernBERT and USER2, then ettin.
        "modernbert": {
            "causal_mask": False,
            "position_embedding_type": "rope",
            "attention_layer": "rope",
            "attn_qkv_bias": False,
            "hidden_act": "gelu",
            "local_attn_rotary_emb_base": 10000.0,
            "loss_kwargs": {"reduction": "mean"},
            "norm_kwargs": {"eps": 1e-5, "bias": False},
            "use_fa2": True,
        },
        # DeBERTa of Vietnamese and Portuguese.
        "deberta-v2": {"attention_head_size": 8},
    }
    for variant, keys in cases.items():
        before = _read(VARIANTS[variant].config)
        assert before is not None
        assert _read(VARIANTS[variant].config | keys) == before, variant
    for variant, key, value in (
        ("qwen2", "use_mrope", True),
        ("modernbert", "position_embedding_type", "alibi"),
        ("modernbert", "causal_mask", True),
        ("modernbert", "normalization", "rmsnorm"),
        ("modernbert", "rotary_emb_interleaved", True),
        ("modernbert", "hidden_act", "silu"),
        ("modernbert", "sliding_window", 128),
        ("deberta-v2", "attention_head_size", 16),
        ("bert", "attn_qkv_bias", False),
        ("bert", "adapters", adapters | {"adapters": {"en": "16eaa0b5fae9ed68"}}),
    ):
        assert _read(VARIANTS[variant].config | {key: value}) is None, key


def test_keys_of_exporters_count_for_nothing() -> None:
    # Of optimum and transformers.js: multilingual-e5-large-instruct, granite-embedding-english-r2.
    keys = {"export_model_type": "transformer", "transformers.js_config": {"dtype": "q8"}}
    for variant in ("xlm-roberta", "modernbert"):
        before = _read(VARIANTS[variant].config)
        assert before is not None
        assert _read(VARIANTS[variant].config | keys) == before


def test_the_name_that_farm_gave_a_model_counts_for_nothing() -> None:
    keys = {"name": "Roberta", "language": "english"}
    before = _read(VARIANTS["roberta"].config)
    assert before is not None
    assert _read(VARIANTS["roberta"].config | keys) == before


def test_keys_of_bert_in_a_modernbert_count_for_nothing() -> None:
    # granite-embedding-small-english-r2 and its kin.
    keys = {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "position_embedding_type": "relative_key_query",
    }
    before = _read(VARIANTS["modernbert"].config)
    assert before is not None
    assert _read(VARIANTS["modernbert"].config | keys) == before
    assert _read(VARIANTS["bert"].config | keys) is None


@pytest.mark.parametrize(
    ("variant", "key", "own_class"),
    [
        ("nomic_bert-own-keys", "AutoModel", "modeling_hf_nomic_bert.NomicBertModel"),
        (
            "nomic_bert-own-keys",
            "AutoModel",
            "nomic-ai/CodeRankEmbed--modeling_hf_nomic_bert.NomicBertModel",
        ),
        ("nomic_bert-moe", "AutoModel", "modeling_hf_nomic_bert.NomicBertModel"),
        ("eurobert", "AutoModel", "EuroBERT/EuroBERT-210m--modeling_eurobert.EuroBertModel"),
        (
            "eurobert",
            "AutoModelForSequenceClassification",
            "EuroBERT/EuroBERT-2.1B--modeling_eurobert.EuroBertForSequenceClassification",
        ),
    ],
)
def test_a_copy_of_a_published_class_is_that_class(variant: str, key: str, own_class: str) -> None:
    config = VARIANTS[variant].config
    copied = JsonObject("config.json", config | {"auto_map": {key: own_class}})
    check_own_code(copied, key)
    assert family_of(copied) is family_of(JsonObject("config.json", config))
    strange = config | {"auto_map": {key: f"someone/{own_class}"}}
    with pytest.raises(ModelUnsupportedError, match="never runs"):
        check_own_code(JsonObject("config.json", strange), key)


def test_a_class_of_the_same_name_in_another_file_is_explained() -> None:
    # jina-embeddings-v2-base-es.
    own = "jinaai/jina-bert-v2-qk-devlin-norm-1e-2--modeling_bert.JinaBertModel"
    config = VARIANTS["jina_bert"].config | {"auto_map": {"AutoModel": own}}
    with pytest.raises(ModelUnsupportedError, match=r"jina-bert-impl.*; its norms of queries"):
        check_own_code(JsonObject("config.json", config), "AutoModel")


@pytest.mark.parametrize("variant", VARIANTS)
def test_another_value_is_refused_or_makes_another_model(variant: str) -> None:
    config = VARIANTS[variant].config
    before = _read(config)
    assert before is not None
    for key in _keys(variant):
        for value in _others(config[key]):
            assert _read(config | {key: value}) != before, f"{key} = {value} changes nothing"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_missing_key_is_refused_or_means_what_it_means_in_transformers(variant: str) -> None:
    config = VARIANTS[variant].config
    defaults = json.loads(DEFAULTS.read_text())[config["model_type"]]
    compared = []
    for key in defaults.keys() & set(_keys(variant)):
        missing = _read({name: config[name] for name in config if name != key})
        default = _read(config | {key: defaults[key]})
        if missing is not None and default is not None:
            assert missing == default, key
            compared.append(key)
    assert compared


@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    stored = json.loads(DEFAULTS.read_text())[model_type]
    family = FAMILIES[model_type]
    traits = [trait for trait in vars(family).values() if isinstance(trait, Key)]
    compared = {trait.name: trait.default for trait in traits if trait.name in stored}
    assert compared == {name: stored[name] for name in compared}
    assert compared
    theta = stored["default_theta"]
    thetas = (theta["global"], theta["local"]) if isinstance(theta, dict) else (theta,)
    read = [trait.default for trait in (family.rope_theta, family.window_rope_theta) if trait]
    assert read == list(thetas) or (read == [] and family.positions != "rotary")


FIELDS: dict[str, tuple[str, Any]] = {
    "activation": ("gemma3_text", "silu"),
    "norm_eps": ("gemma3_text", 0.3),
    "pad_token_id": ("mpnet", 0),
    "rope": ("gemma3_text", Rope(theta=2.0)),
    "window_rope": ("gemma3_text", None),
    "position_bias": ("mpnet", PositionBias(num_buckets=32, max_distance=64)),
    "relative_positions": ("deberta-v2", RelativePositions(num_buckets=16, max_distance=40)),
    "is_causal": ("gemma3_text", True),
    "windows": ("gemma3_text", (4, 4, 4)),
    "attention_scale": ("gemma3_text", None),
    "attention_cap": ("gemma2", None),
    "embedding_scale": ("gemma3_text", 1.0),
    "embedding_size": ("albert", None),
    "norms_embeddings": ("modernbert", False),
    "norm_placement": ("gemma2", "pre"),
    "num_heads": ("mpnet", 2),
    "num_kv_heads": ("gemma2", 4),
    "head_dim": ("modernbert", 6),
    "is_gated": ("modernbert", False),
    "norm": ("modernbert", "rms_norm"),
    "has_norm_bias": ("modernbert-biases", False),
    "has_qk_norm": ("gemma3_text", False),
    "has_qkv_bias": ("modernbert-biases", False),
    "has_output_bias": ("modernbert-biases", False),
    "has_mlp_bias": ("modernbert-biases", False),
    "has_down_bias": ("new", False),
    "num_token_types": ("nomic_bert", 0),
    "num_task_types": ("ernie-tasks", 0),
    "experts": ("nomic_bert-moe", Experts(count=6, num_chosen=3, layers=(1, 3))),
    "has_v_norm": ("embedding_gemma2_text", False),
    "wide_heads": ("embedding_gemma2_text", WideHeads(head_dim=6, num_kv_heads=2)),
    "layer_input_size": ("embedding_gemma2_text", None),
    "qk_norm_joins_heads": ("jina_bert-code", False),
    "norms_attention_twice": ("jina_bert-code", False),
    "convolutions": ("lfm2", None),
}
"""Field of the spec to a variant that uses it and a different value."""

SIZES = {
    "family", "vocab_size", "hidden_size", "num_layers", "intermediate_size", "num_positions",
    "position_offset",
}  # fmt: skip
"""Fields that the stored tensors depend on; the offset is the padding id plus one."""


def test_every_field_of_the_spec_is_tried() -> None:
    assert {field.name for field in fields(Encoder)} == FIELDS.keys() | SIZES


@pytest.fixture(scope="module")
def distance(
    tiny_folder: Callable[[str], Path],
    golden: Callable[[str], Golden],
    compile_graph: Callable[[ModelSpec, ArraysByRole], Callable[[Batch], NDArray[np.float32]]],
) -> Callable[[str, ModelSpec], float]:
    """Return a function that returns a spec's distance from the stored vector of a variant."""

    def distance(variant: str, spec: ModelSpec) -> float:
        case = golden(variant).cases[0]
        row, ids = max(enumerate(case.ids), key=lambda item: len(item[1]))
        weights = load_weights(read_model_files(tiny_folder(variant)))
        batch = make_batch([ids])
        expected = case.vectors[row]
        found = compile_graph(spec, weights)(batch)[0]
        return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))

    return distance


@pytest.mark.parametrize("variant", sorted({variant for variant, _ in FIELDS.values()}))
def test_the_spec_as_it_is_makes_the_stored_vectors(
    variant: str,
    tiny_folder: Callable[[str], Path],
    distance: Callable[[str, ModelSpec], float],
) -> None:
    assert distance(variant, read_model_files(tiny_folder(variant)).spec) <= 2e-5


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_the_spec_makes_other_vectors(
    name: str, tiny_folder: Callable[[str], Path], distance: Callable[[str, ModelSpec], float]
) -> None:
    variant, value = FIELDS[name]
    spec = read_model_files(tiny_folder(variant)).spec
    assert getattr(spec.encoder, name) != value
    changed = replace(spec.encoder, **{name: value})
    if encoder_shapes(changed) == encoder_shapes(spec.encoder):  # else it is rejected
        assert distance(variant, replace(spec, encoder=changed)) > 1e-3


def test_a_message_names_all_unknown_keys_and_what_to_do() -> None:
    unknown = {"export_kind": "x", "other_kind": {}, "odd\n": 1}
    with pytest.raises(
        ModelUnsupportedError,
        match=r'export_kind = "x" is not a known key \(nor are other_kind, "odd\\n"\); '
        r".*load a copy of the folder without it$",
    ):
        read_encoder(JsonObject("config.json", {**VARIANTS["bert"].config, **unknown}))

"""A model folder to a ModelSpec: modules, pooling, prompts, the length limit, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlib.config import Config
from embedlib.errors import ModelNotFoundError, ModelUnsupportedError
from embedlib.models.hub import resolve
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.settings_file import (
    EMBEDDING_KEYS,
    LATE_KEYS,
    MASKED_KEYS,
    SCORING_KEYS,
    SettingsKeys,
    read_settings,
)
from embedlib.models.spec import Dense, LayerNorm, Module, Normalize, Pooling
from embedlib.models.weights.load import load_weights
from embedlib.testing.models.write import write_tiny_model

MISSING = object()
"""As the value of a change: removes the key."""


def _change(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; a missing file is created."""
    values = json.loads(path.read_text()) if path.is_file() else {}
    values = {key: value for key, value in (values | changes).items() if value is not MISSING}
    path.write_text(json.dumps(values))


def _change_modules(folder: Path, position: int, **changes: Any) -> None:
    path = folder / "modules.json"
    entries = json.loads(path.read_text())
    entries[position] |= changes
    path.write_text(json.dumps(entries))


MEAN = Pooling(modes=("mean",))
LAST = Pooling(modes=("last_token",))
ALL_MODES = ("cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last_token")
DENSE = Dense(in_features=32, out_features=20, has_bias=True, activation="tanh")
PROJECTION = Dense(in_features=32, out_features=48, has_bias=False, activation="identity")
WITHOUT_PROMPT = Pooling(modes=("mean", "weighted_mean"), include_prompt=False)


@pytest.mark.parametrize(
    ("variant", "modules", "dim"),
    [
        ("bert", (MEAN, Normalize()), 32),
        ("bert-bare", (MEAN,), 32),
        (
            "bert-cls-dense",
            (Pooling(modes=("cls",)), DENSE, LayerNorm(dim=20, eps=1e-5), Normalize()),
            20,
        ),
        ("bert-concat", (Pooling(modes=ALL_MODES),), 6 * 32),
        ("bert-prompt", (WITHOUT_PROMPT,), 64),
        ("roberta", (MEAN, PROJECTION), 48),
        ("xlm-roberta", (Pooling(modes=("cls",)), Normalize()), 32),
        ("mistral", (LAST, Normalize()), 32),
        ("mistral-bidirectional", (MEAN,), 32),
        ("llama-bare", (LAST,), 32),
        ("qwen3", (LAST, Normalize()), 32),
        ("qwen3-bidirectional", (MEAN,), 32),
    ],
)
def test_modules(
    variant: str, modules: tuple[Module, ...], dim: int, tiny_folder: Callable[[str], Path]
) -> None:
    spec = read_model_files(tiny_folder(variant)).spec
    assert spec.modules == modules
    assert spec.pooling == modules[0]
    assert spec.is_normalized == (Normalize() in modules)
    assert spec.embedding_dim == dim


def test_parts_lie_where_modules_json_says(tiny_folder: Callable[[str], Path]) -> None:
    folder = tiny_folder("bert-cls-dense")
    files = read_model_files(folder)
    assert files.folder == folder
    assert files.transformer_dir == folder / "0_Transformer"
    names = ("1_Pooling", "2_Dense", "3_LayerNorm", "4_Normalize")
    assert files.module_dirs == tuple(folder / name for name in names)


def test_prompts_and_what_else_is_general(tiny_folder: Callable[[str], Path]) -> None:
    spec = read_model_files(tiny_folder("bert-cls-dense")).spec
    assert spec.prompts == {"query": "query: ", "document": ""}
    assert (spec.default_prompt_name, spec.similarity, spec.truncate_dim) == (None, "dot", 16)
    spec = read_model_files(tiny_folder("bert-prompt")).spec
    assert (spec.default_prompt_name, spec.similarity) == ("passage", "cosine")
    spec = read_model_files(tiny_folder("bert")).spec
    assert (spec.prompts, spec.default_prompt_name, spec.similarity) == ({}, None, "cosine")
    assert not spec.lowercase
    assert read_model_files(tiny_folder("bert-concat")).spec.lowercase


def test_a_truncate_dim_that_keeps_all_dimensions_cuts_nothing(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-prompt")
    file = folder / "config_sentence_transformers.json"
    dim = read_model_files(folder).spec.embedding_dim
    for given, expected in ((dim - 1, dim - 1), (dim, None), (10_000, None)):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"truncate_dim": given}))
        assert read_model_files(folder).spec.truncate_dim == expected


@pytest.mark.parametrize(
    ("variant", "limit", "source"),
    [
        ("bert", 24, "sentence_bert_config.json: max_seq_length"),
        ("bert-bare", 40, "tokenizer_config.json: model_max_length"),
        ("bert-cls-dense", 30, "0_Transformer/tokenizer_config.json: model_max_length"),
        ("roberta", 46, "tokenizer_config.json: model_max_length"),
        ("xlm-roberta", 40, "sentence_xlm-roberta_config.json: max_seq_length"),
        ("mistral", 56, "sentence_bert_config.json: max_seq_length"),
        ("mistral-bidirectional", 64, "config.json: max_position_embeddings"),
    ],
)
def test_length_limit_of_the_variants(
    variant: str, limit: int, source: str, tiny_folder: Callable[[str], Path]
) -> None:
    spec = read_model_files(tiny_folder(variant)).spec
    assert (spec.max_seq_tokens, spec.max_seq_tokens_source) == (limit, source)


@pytest.mark.parametrize(
    ("max_seq_length", "tokenizer_limit", "positions", "limit"),
    [
        (10, 20, 30, 10),
        # sentence-transformers replaces the tokenizer's limit by its own.
        (20, 10, 30, 20),
        (40, 10, 30, 30),
        (None, 20, 30, 20),
        (None, 40, 30, 30),
        (None, None, 30, 30),
        # transformers writes 10**30, rounded as a float, for "no limit".
        (None, 1000000000000000019884624838656, 30, 30),
        (None, 1e30, 30, 30),
        (None, float("inf"), 30, 30),
        (None, 10**400, 30, 30),
        (None, 20.0, 30, 20),
    ],
)
def test_length_limit(
    tmp_path: Path,
    max_seq_length: int | None,
    tokenizer_limit: float | None,
    positions: int,
    limit: int,
) -> None:
    folder = write_tiny_model(tmp_path, "llama")
    _change(folder / "sentence_bert_config.json", max_seq_length=max_seq_length)
    _change(folder / "tokenizer_config.json", model_max_length=tokenizer_limit)
    _change(folder / "config.json", max_position_embeddings=positions)
    assert read_model_files(folder).spec.max_seq_tokens == limit


def test_roberta_loses_the_positions_up_to_the_padding_id(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "roberta")
    _change(folder / "tokenizer_config.json", model_max_length=MISSING)
    spec = read_model_files(folder).spec
    assert (spec.encoder.num_positions, spec.max_seq_tokens) == (48, 46)
    _change(folder / "config.json", max_position_embeddings=2)
    with pytest.raises(ModelUnsupportedError, match=r"^config.json: max_position_embeddings = 2 "):
        read_model_files(folder)


def test_a_length_limit_that_is_no_number_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-bare")
    _change(folder / "tokenizer_config.json", model_max_length="512")
    message = '^tokenizer_config.json: model_max_length = "512"'
    with pytest.raises(ModelUnsupportedError, match=message):
        read_model_files(folder)


FLAGS = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({}, ("mean",)),
        ({"pooling_mode_max_tokens": False}, ("mean",)),
        (FLAGS | {"pooling_mode_cls_token": True}, ("cls",)),
        (FLAGS | {"pooling_mode_lasttoken": True}, ("last_token",)),
        # Flags are concatenated in the order of sentence-transformers, not of the file.
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            ("cls", "mean"),
        ),
        ({"pooling_mode": "weightedmean"}, ("weighted_mean",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        # The newer key takes precedence, as in sentence-transformers.
        ({"pooling_mode": "max", "pooling_mode_mean_tokens": True}, ("max",)),
    ],
)
@pytest.mark.parametrize("dim_key", ["word_embedding_dimension", "embedding_dimension"])
def test_pooling_in_both_spellings(
    tmp_path: Path, config: dict[str, Any], modes: tuple[str, ...], dim_key: str
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({dim_key: 32} | config))
    assert read_model_files(folder).spec.pooling == Pooling(modes=modes)


@pytest.mark.parametrize(
    ("changes", "modes"),
    [
        ({}, ("last_token",)),
        ({"architectures": ["LlamaModel"]}, ("mean",)),
        ({"architectures": None}, ("mean",)),
        ({"architectures": []}, ("mean",)),
        ({"is_causal": False}, ("mean",)),
        ({"is_causal": True}, ("last_token",)),
    ],
)
def test_a_folder_without_modules_is_pooled_by_its_class(
    tmp_path: Path, changes: dict[str, Any], modes: tuple[str, ...]
) -> None:
    folder = write_tiny_model(tmp_path, "llama-bare")
    _change(folder / "config.json", **changes)
    assert read_model_files(folder).spec.modules == (Pooling(modes=modes),)


def test_a_folder_that_lost_its_modules_in_a_copy_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "modules.json").unlink()
    with pytest.raises(ModelUnsupportedError, match=r"no modules\.json, which says what follows"):
        read_model_files(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    assert read_model_files(folder).spec.modules == (Pooling(modes=("mean",)),)


def test_a_folder_without_modules_has_no_other_settings(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-bare")
    _change(folder / "sentence_bert_config.json", max_seq_length=3)
    _change(folder / "config_sentence_transformers.json", prompts={"query": "query: "})
    spec = read_model_files(folder).spec
    assert (spec.max_seq_tokens, spec.prompts) == (40, {})


@pytest.mark.parametrize("key", ["model_args", "model_kwargs"])
@pytest.mark.parametrize("own_code", [{}, {"trust_remote_code": True}])
def test_a_pooler_may_be_left_out(key: str, own_code: dict[str, bool], tmp_path: Path) -> None:
    # As snowflake-arctic-embed-* have it.
    folder = write_tiny_model(tmp_path, "bert")
    before = read_model_files(folder).spec
    settings = folder / "sentence_bert_config.json"
    content = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps(content | {key: {"add_pooling_layer": False, **own_code}}))
    assert read_model_files(folder).spec == before


@pytest.mark.parametrize("part", ["model", "tokenizer", "config"])
@pytest.mark.parametrize("keys", [EMBEDDING_KEYS, LATE_KEYS, SCORING_KEYS, MASKED_KEYS])
def test_own_code_may_be_allowed(keys: SettingsKeys, part: str, tmp_path: Path) -> None:
    settings = {f"{part}_args": {"trust_remote_code": True}}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    assert read_settings(tmp_path, tmp_path, keys).values == settings


@pytest.mark.parametrize("key", ["model_args", "model_kwargs"])
@pytest.mark.parametrize("keys", [EMBEDDING_KEYS, LATE_KEYS, SCORING_KEYS, MASKED_KEYS])
def test_how_transformers_computes_a_model_changes_no_vector(
    keys: SettingsKeys, key: str, tmp_path: Path
) -> None:
    arguments = {"attn_implementation": "sdpa", "dtype": "auto", "torch_dtype": "bfloat16"}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({key: arguments}))
    assert read_settings(tmp_path, tmp_path, keys).values == {key: arguments}


@pytest.mark.parametrize("keys", [SCORING_KEYS, MASKED_KEYS])
def test_a_head_may_read_the_pooler(keys: SettingsKeys, tmp_path: Path) -> None:
    content = {"model_args": {"add_pooling_layer": False}}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(content))
    with pytest.raises(ModelUnsupportedError, match="model_args = "):
        read_settings(tmp_path, tmp_path, keys)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sentence_transformers.sparse_encoder.modules.SparseAutoEncoder", "a sparse model"),
        ("sentence_transformers.base.modules.router.Router", "one model for queries"),
        ("sentence_transformers.multi_vector_encoder.modules.MultiVectorMask", "a ColBERT model"),
        ("pylate.models.Dense.Dense", "a ColBERT model"),
    ],
)
def test_a_model_of_another_kind_is_told_what_it_is(
    kind: str, message: str, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    entries = json.loads((folder / "modules.json").read_text())
    entries[1]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ModelUnsupportedError, match=rf"^modules.json: \[1\]: type = .*{message}"):
        read_model_files(folder)


def test_a_transformer_of_the_folder_s_own_code_is_told_before_its_arguments(
    tmp_path: Path,
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _change_modules(folder, 0, type="custom_st.JasperTransformer", kwargs=["compression_ratio"])
    with pytest.raises(ModelUnsupportedError, match=r"\[0\]: type = .*averages neighbouring to"):
        read_model_files(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adapter_config.json", r"without its model, 'a/b'; merge the two with peft, model.merge"),
        ("model-Q4_K_M.gguf", "was made from; `embedlib models` lists what loads$"),
        (
            "bge_base_en_v1.5.Q8_0.gguf",
            "holds GGUF, .* was made from: by its name BAAI/bge-base-en-v1.5, which loads$",
        ),
        ("README.md", "there is no config.json$"),
    ],
)
def test_a_folder_without_a_model_is_told_what_it_holds(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text('{"base_model_name_or_path": "a/b"}')
    with pytest.raises(ModelNotFoundError, match=message):
        read_model_files(tmp_path)
    named = message if name != "README.md" else "holds neither config.json nor modules.json"
    with pytest.raises(ModelNotFoundError, match=named):
        resolve(str(tmp_path), Config())


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"base_model_name_or_path": 7}'])
def test_an_adapter_that_does_not_say_what_it_changes(content: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ModelNotFoundError, match="is an adapter without its model; merge"):
        read_model_files(tmp_path)


@pytest.mark.parametrize("variant", ["bert", "bert-cls-dense", "bert-bare"])
def test_an_adapter_beside_a_model_is_refused(variant: str, tmp_path: Path) -> None:
    # transformers adds it to the weights if peft is installed, and else does not.
    folder = write_tiny_model(tmp_path, variant)
    place = read_model_files(folder).transformer_dir / "adapter_config.json"
    place.write_text('{"peft_type": "LORA"}')
    name = place.relative_to(folder).as_posix()
    with pytest.raises(ModelUnsupportedError, match=rf"^{name}: is an adapter, .*; or delete the"):
        read_model_files(folder)


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_texts_that_would_go_through_a_chat_template_are_refused(
    place: str, tmp_path: Path
) -> None:
    # sentence-transformers 6.2 uses it only where no modules.json says what the modules are.
    for variant in ("llama-bare", "llama"):
        folder = write_tiny_model(tmp_path / variant, variant)
        if place == "tokenizer_config.json":
            _change(folder / place, chat_template="{{ messages }}")
        else:
            (folder / place).write_text("{{ messages }}")
    assert read_model_files(tmp_path / "llama").spec is not None
    with pytest.raises(ModelUnsupportedError, match=r"has a chat template and no modules\.json: "):
        read_model_files(tmp_path / "llama-bare")


def test_the_types_of_all_releases_are_known(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    for position, kind in enumerate(
        (
            "sentence_transformers.base.modules.transformer.Transformer",
            "sentence_transformers.sentence_transformer.modules.Pooling",
            "sentence_transformers.models.Normalize.Normalize",
        )
    ):
        _change_modules(folder, position, type=kind)
    assert read_model_files(folder).spec.modules == (MEAN, Normalize())


def test_the_order_of_modules_is_that_of_the_list(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    path = folder / "modules.json"
    entries = json.loads(path.read_text())
    entries[2:] = [entries[4], entries[2], entries[3]]
    path.write_text(json.dumps(entries))
    kinds = [type(module) for module in read_model_files(folder).spec.modules]
    assert kinds == [Pooling, Normalize, Dense, LayerNorm]


def test_a_folder_without_a_model_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no config.json"):
        read_model_files(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "modules.json", "tokenizer_config.json", "sentence_bert_config.json"),
        *("config_sentence_transformers.json", "1_Pooling/config.json"),
    ],
)
@pytest.mark.parametrize("content", ['{"a":', '"text"', "7", b"\xff\xfe"])
def test_broken_json_is_named(tmp_path: Path, name: str, content: str | bytes) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    raw = content if isinstance(content, bytes) else content.encode()
    (folder / name).write_bytes(raw)
    with pytest.raises(ModelUnsupportedError, match=f"^{name}: ") as caught:
        read_model_files(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "1_Pooling/config.json",
            {"word_embedding_dimension": 16},
            "word_embedding_dimension = 16",
        ),
        (
            "1_Pooling/config.json",
            {"word_embedding_dimension": MISSING},
            "word_embedding_dimension",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, 'pooling_mode = "attention"'),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", 3]}, "pooling_mode = "),
        ("1_Pooling/config.json", {"pooling_mode": []}, "pooling_mode = "),
        ("1_Pooling/config.json", FLAGS, "pooling_mode_mean_tokens = false is not"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_median": True},
            "pooling_mode_median = true is not",
        ),
        ("1_Pooling/config.json", {"include_prompt": "no"}, 'include_prompt = "no"'),
        ("1_Pooling/config.json", {"include_prompt": None}, "include_prompt = null is not"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": MISSING},
            "pooling_mode_mean_tokens is missing beside pooling mode cls",
        ),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, 'max_seq_length = "long"'),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length = 0"),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case = 1"),
        (
            "sentence_bert_config.json",
            {"transformer_task": "fill-mask"},
            'transformer_task = "fill',
        ),
        ("sentence_bert_config.json", {"module_output_name": "x"}, 'module_output_name = "x"'),
        (
            # sentence-transformers 6.2 gives other vectors than for the text alone.
            "sentence_bert_config.json",
            {"modality_config": {"message": {}}},
            "modality_config = .*accepted: text alone; sentence-transformers 5.4 .* chat template",
        ),
        ("sentence_bert_config.json", {"query_length": 8}, "query_length = 8"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "processing_kwargs = "),
        ("sentence_bert_config.json", {"model_args": {"a": 1}}, "model_args = "),
        ("sentence_bert_config.json", {"model_args": {"add_pooling_layer": True}}, "model_args = "),
        ("sentence_bert_config.json", {"new_key": 1}, "new_key = 1 is not a known key"),
        ("config_sentence_transformers.json", {"new_key": 1}, "new_key = 1 is not a known key"),
        (
            "config_sentence_transformers.json",
            {"model_type": "CrossEncoder"},
            'model_type = "Cross',
        ),
        ("config_sentence_transformers.json", {"prompts": []}, r"prompts = \[\]"),
        ("config_sentence_transformers.json", {"prompts": {"query": 1}}, "prompts: query = 1"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query"},
            'default_prompt_name = "query"',
        ),
        (
            "config_sentence_transformers.json",
            {"similarity_fn_name": "maxsim"},
            'similarity_fn_name = "maxsim" is not supported; accepted: cosine, dot',
        ),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "truncate_dim = 0"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("2_Normalize/config.json", {"module_output_name": "other"}, "module_output_name"),
        ("2_Normalize/config.json", {"p": 1}, "p = 1 is not a known key"),
    ],
)
def test_refusals_name_file_key_and_value(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _change(folder / name, **changes)
    with pytest.raises(ModelUnsupportedError, match=f"^{name}: {message}"):
        read_model_files(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("2_Dense/config.json", {"in_features": 16}, "in_features = 16 .* 32, the width"),
        ("2_Dense/config.json", {"out_features": None}, "out_features = null"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual = true"),
        ("2_Dense/config.json", {"module_output_name": "other"}, 'module_output_name = "other"'),
        ("2_Dense/config.json", {"module_input_name": "other"}, 'module_input_name = "other"'),
        ("2_Dense/config.json", {"gate": True}, "gate = true is not a known key"),
        # A missing key means tanh; sentence-transformers fails with null.
        ("2_Dense/config.json", {"activation_function": None}, "activation_function = null"),
        (
            "2_Dense/config.json",
            {"activation_function": "own.Swish"},
            'activation_function = "own.Swish" is not supported; accepted: torch.nn.modules.lin',
        ),
        ("3_LayerNorm/config.json", {"dimension": 32}, "dimension = 32 .* 20, the width"),
        ("3_LayerNorm/config.json", {"eps": 1}, "eps = 1 is not a known key"),
    ],
)
def test_refusals_of_modules(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    _change(folder / name, **changes)
    with pytest.raises(ModelUnsupportedError, match=f"^{name}: {message}"):
        read_model_files(folder)


@pytest.mark.parametrize(
    ("position", "changes", "message"),
    [
        (0, {"type": "sentence_transformers.models.CLIPModel"}, 'type = ".*CLIPModel"'),
        (0, {"type": "sentence_transformers.models.Pooling"}, 'type = ".*Pooling"'),
        (1, {"type": "sentence_transformers.models.WeightedLayerPooling"}, 'type = ".*Weighted'),
        (2, {"type": "sentence_transformers.models.CNN"}, 'type = ".*CNN"'),
        (1, {"type": "sentence_transformers.models.Dropout"}, 'type = ".*Dropout"'),
        (2, {"type": "own_code.Normalize"}, 'type = "own_code.Normalize"'),
        (2, {"type": 5}, "type = 5"),
        (1, {"path": "../1_Pooling"}, 'path = "../1_Pooling"'),
        (1, {"path": "/1_Pooling"}, 'path = "/1_Pooling"'),
        (1, {"kwargs": ["task"]}, r'kwargs = \["task"\]'),
        (1, {"name": "0"}, 'name = "0".* a name that no other module has'),
    ],
)
def test_refusals_of_modules_json(
    tmp_path: Path, position: int, changes: dict[str, Any], message: str
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _change_modules(folder, position, **changes)
    with pytest.raises(ModelUnsupportedError, match=rf"^modules.json: \[{position}\]: {message}"):
        read_model_files(folder)


def test_a_dropout_is_read_over(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    before = read_model_files(folder)
    path = folder / "modules.json"
    entries = json.loads(path.read_text())
    for position, kind in ((3, "models"), (2, "sentence_transformer.modules.dropout")):
        place = f"9_Dropout{position}"
        entry = {"path": place, "type": f"sentence_transformers.{kind}.Dropout"}
        entries.insert(position, entry)
        (folder / place).mkdir()
        _change(folder / place / "config.json", dropout=0.3)
    path.write_text(json.dumps(entries))
    after = read_model_files(folder)
    assert (after.spec, after.module_dirs) == (before.spec, before.module_dirs)
    assert load_weights(after).keys() == load_weights(before).keys()
    _change(folder / "9_Dropout2" / "config.json", axis=1)
    with pytest.raises(ModelUnsupportedError, match=r"^9_Dropout2/config.json: axis = 1 is not"):
        read_model_files(folder)


@pytest.mark.parametrize(
    ("name", "activation"), [("Tanh", "tanh"), ("Sigmoid", "sigmoid"), ("Identity", "identity")]
)
def test_short_names_of_activations_of_a_dense(name: str, activation: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    _change(folder / "2_Dense/config.json", activation_function=f"torch.nn.{name}")
    dense = read_model_files(folder).spec.modules[1]
    assert isinstance(dense, Dense)
    assert dense.activation == activation


@pytest.mark.parametrize("path", ["", None])
def test_a_transformer_without_a_path_lies_in_the_model_folder(
    path: str | None, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    first, *others = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([first | {"path": path}, *others]))
    assert read_model_files(folder).transformer_dir == folder


def test_a_prompt_that_is_null_is_empty(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    _change(folder / "config_sentence_transformers.json", prompts={"query": None, "document": "d"})
    _change(folder / "config_sentence_transformers.json", default_prompt_name=None)
    assert read_model_files(folder).spec.prompts == {"query": "", "document": "d"}


def test_a_transformer_alone_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    path = folder / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:1]))
    with pytest.raises(ModelUnsupportedError, match=r"^modules.json: has 1 modules"):
        read_model_files(folder)
    path.write_text("[]")
    with pytest.raises(ModelUnsupportedError, match=r"^modules.json: has 0 modules"):
        read_model_files(folder)
    for content in ("{}", "[1]"):
        path.write_text(content)
        with pytest.raises(ModelUnsupportedError, match=r"^modules.json: .* a list of objects"):
            read_model_files(folder)

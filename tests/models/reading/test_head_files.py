"""The files of a model with a head: what is read, what changes it, and what is rejected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedlib import Classifier, Reranker
from embedlib.errors import ConfigError, ModelError, ModelUnsupportedError, ModelWeightsError
from embedlib.models.families.row import Key
from embedlib.models.families.table import FAMILIES
from embedlib.models.known_rerankers import known_reranker, template_of
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.reading.parts import LATE_WAY
from embedlib.models.spec import Dense, Head, Pooling
from embedlib.models.weights.load import load_weights
from embedlib.testing.models.table import SCORING_VARIANTS, VARIANTS
from embedlib.testing.models.write import write_tiny_model
from tests.tiny_models.sparse import write_sparse_model

DEFAULTS = Path(__file__).parents[2] / "goldens" / "defaults.json"
MISSING = object()
"""As the value of a change: removes the key."""


def _change(folder: Path, name: str = "config.json", **changes: Any) -> None:
    path = folder / name
    values = json.loads(path.read_text()) | changes
    kept = {key: value for key, value in values.items() if value is not MISSING}
    path.write_text(json.dumps(kept))


def _read(folder: Path, variant: str) -> ModelFiles:
    return read_model_files(folder, with_head=True, template=SCORING_VARIANTS[variant].template)


def _head(files: ModelFiles) -> Head:
    assert files.spec.head is not None
    return files.spec.head


def test_a_bert_with_a_head(tiny_folder: Callable[[str], Path]) -> None:
    files = _read(tiny_folder("bert-classifier"), "bert-classifier")
    assert files.spec.modules == (
        Pooling(modes=("cls",)),
        Dense(in_features=32, out_features=32, has_bias=True, activation="tanh"),
        Dense(in_features=32, out_features=3, has_bias=True, activation="identity"),
    )
    assert files.module_tensors == {1: "bert.pooler.dense", 2: "classifier"}
    assert files.spec.embedding_dim == 3
    assert files.spec.max_seq_tokens == 48
    assert files.spec.head == Head(
        labels=("positive", "neutral", "negative"),
        activation="softmax",
        reranker_activation="identity",
    )


def test_a_decoder_that_answers_with_a_token(tiny_folder: Callable[[str], Path]) -> None:
    files = _read(tiny_folder("qwen2-answers"), "qwen2-answers")
    assert files.spec.modules == (
        Pooling(modes=("last_token",)),
        Dense(in_features=32, out_features=1, has_bias=False, activation="identity"),
    )
    rows = files.module_tensors[1]
    assert isinstance(rows, AnswerRows)
    assert rows.tensor == "lm_head.weight"
    assert _head(files).template == known_reranker("mxbai-rerank-v2").template
    stored = load_file(files.folder / "model.safetensors")["lm_head.weight"]
    assert rows.false_token_id is not None
    difference = stored[rows.true_token_id] - stored[rows.false_token_id]
    np.testing.assert_array_equal(load_weights(files)["modules.1.weight"], difference[None])


# The head in config.json.


@pytest.mark.parametrize(
    ("changes", "labels", "activation", "reranker_activation"),
    [
        ({}, ("positive", "neutral", "negative"), "softmax", "identity"),
        ({"problem_type": MISSING}, None, "softmax", "identity"),
        ({"problem_type": None}, None, "softmax", "identity"),
        ({"problem_type": "multi_label_classification"}, None, "sigmoid", "identity"),
        ({"problem_type": "regression"}, None, "identity", "identity"),
        ({"id2label": {"0": "a"}, "problem_type": MISSING}, ("a",), "sigmoid", "sigmoid"),
        # transformers' pipeline does not apply softmax to a single number.
        ({"id2label": {"0": "a"}}, ("a",), "sigmoid", "sigmoid"),
        ({"id2label": {"1": "b", "0": "a"}}, ("a", "b"), "softmax", "identity"),
        ({"id2label": MISSING}, ("LABEL_0", "LABEL_1"), "softmax", "identity"),
        ({"id2label": MISSING, "num_labels": 1}, ("LABEL_0",), "sigmoid", "sigmoid"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            None,
            "softmax",
            "sigmoid",
        ),
        (
            {
                "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
                "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid",
            },
            None,
            "softmax",
            "identity",
        ),
        (  # CrossEncoder reads the older key only where the newer one is missing
            {
                "sentence_transformers": {"activation_fn": None},
                "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid",
            },
            None,
            "softmax",
            "identity",
        ),
    ],
)
def test_labels_and_activations(
    tmp_path: Path,
    changes: dict[str, Any],
    labels: tuple[str, ...] | None,
    activation: str,
    reranker_activation: str,
) -> None:
    folder = write_tiny_model(tmp_path, "bert-classifier")
    _change(folder, **changes)
    head = _head(_read(folder, "bert-classifier"))
    assert head.labels == (labels or ("positive", "neutral", "negative"))
    assert head.activation == activation
    assert head.reranker_activation == reranker_activation


def test_the_newest_place_of_an_activation_counts(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cross-encoder")
    head = _head(_read(folder, "bert-cross-encoder"))
    assert head.reranker_activation == "sigmoid"
    _change(folder, "config_sentence_transformers.json", activation_fn=MISSING)
    head = _head(_read(folder, "bert-cross-encoder"))
    assert head.reranker_activation == "identity"  # config.json contains the older key


REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "an activation of one's own": (
        "bert-reranker",
        "config.json",
        {"sbert_ce_default_activation_function": "my.package.Activation"},
        "sbert_ce_default_activation_function = ",
    ),
    "a hole in the labels": (
        "bert-classifier", "config.json", {"id2label": {"0": "a", "2": "b"}}, "id2label = ",
    ),
    "two ids of one label": (
        "bert-classifier",
        "config.json",
        {
            "id2label": {"0": "no", "1": "neutral", "2": "Entailment"},
            "label2id": {"no": 2, "neutral": 1, "Entailment": 0},
        },
        "label2id = .*; accepted: 2 for 'Entailment', as in id2label",
    ),
    "no labels": ("bert-classifier", "config.json", {"id2label": {}}, "id2label = "),
    "a label that is no text": (
        "bert-classifier", "config.json", {"id2label": {"0": "a", "1": 1}}, "id2label: 1 = 1",
    ),
    "a label without a name": (
        "bert-classifier", "config.json", {"id2label": {"0": "a", "1": None}}, "id2label = ",
    ),
    "another number of labels": (
        "bert-classifier", "config.json", {"num_labels": 2}, "num_labels = 2",
    ),
    "another problem": (
        "bert-classifier", "config.json", {"problem_type": "ranking"}, 'problem_type = "ranking"',
    ),
    "another class": (
        "bert-classifier",
        "config.json",
        {"architectures": ["BertForTokenClassification"]},
        "architectures = ",
    ),
    "no class": ("bert-classifier", "config.json", {"architectures": MISSING}, "architectures is"),
    "code of its own": (
        "bert-classifier",
        "config.json",
        {"auto_map": {"AutoModelForSequenceClassification": "x.Y"}},
        "auto_map = ",
    ),
    "code of a decoder": (
        "qwen3-answers",
        "config.json",
        {"auto_map": {"AutoModelForCausalLM": "x.Y"}},
        "auto_map = ",
    ),
    "another pooling": (
        "modernbert-reranker",
        "config.json",
        {"classifier_pooling": "max"},
        'classifier_pooling = "max"',
    ),
    "another activation of the head": (
        "modernbert-reranker",
        "config.json",
        {"classifier_activation": "mish"},
        'classifier_activation = "mish"',
    ),
    "several padding tokens": (
        "llama-reward", "config.json", {"pad_token_id": [1, 2]}, "pad_token_id = ",
    ),
    "a token beyond the vocabulary": (
        "qwen3-logit-score",
        "1_LogitScore/config.json",
        {"true_token_id": 100_000},
        "true_token_id = 100000",
    ),
    "no token": (
        "qwen3-logit-score",
        "1_LogitScore/config.json",
        {"true_token_id": MISSING},
        "true_token_id is missing",
    ),
    "another task": (
        "qwen3-logit-score",
        "sentence_bert_config.json",
        {"transformer_task": "sequence-classification"},
        "transformer_task = ",
    ),
    "a chat template": (
        "qwen3-logit-score",
        "sentence_bert_config.json",
        {
            "modality_config": {
                "text": {"method": "forward", "method_output_name": "logits"},
                "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
            }
        },
        "modality_config = .*pass template=",
    ),
    "modalities of another form": (
        "bert-cross-encoder",
        "sentence_bert_config.json",
        {"modality_config": 1},
        'modality_config = 1 .*; accepted: {"text": ',
    ),
    "a prompt that is left out": (
        "modernbert-modules",
        "1_Pooling/config.json",
        {"include_prompt": False},
        "include_prompt = false is not supported; accepted: true$",
    ),
    "an unknown key": (
        "bert-cross-encoder", "config_sentence_transformers.json", {"other": 1}, "other = 1",
    ),
    "settings of texts": (
        "bert-cross-encoder",
        "sentence_bert_config.json",
        {"processing_kwargs": {"chat_template": {}, "text": {"max_length": 8}}},
        "processing_kwargs: text = ",
    ),
    "a head of another class": (
        "bert-reranker",
        "config.json",
        {
            "architectures": ["BertForMaskedLM"],
            "auto_map": {"AutoModelForSequenceClassification": "own.Model"},
        },
        "auto_map = .*never runs",
    ),
    "inputs that are no list": (
        "bert-reranker",
        "tokenizer_config.json",
        {"model_input_names": "input_ids"},
        'model_input_names = "input_ids"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused(name: str, tmp_path: Path) -> None:
    variant, file, changes, message = REFUSED[name]
    folder = write_tiny_model(tmp_path, variant)
    _read(folder, variant)
    _change(folder, file, **changes)
    with pytest.raises(ModelUnsupportedError, match=f"^{file}.*{message}") as caught:
        _read(folder, variant)
    assert "\n" not in str(caught.value)


HEAD_KEYS = (
    "architectures", "id2label", "num_labels", "problem_type", "classifier_pooling",
    "classifier_activation", "classifier_bias", "norm_bias", "pad_token_id", "tie_word_embeddings",
    "sbert_ce_default_activation_function", "sentence_transformers",
)  # fmt: skip
"""Keys that an Embedder may ignore, or that have another meaning for it."""

CHANGES_NOTHING = {
    # The modules say what the head is.
    ("modernbert-modules", "architectures"),
    # Heads that do not use the embedding matrix, and classes without these keys.
    *((name, "tie_word_embeddings") for name, row in SCORING_VARIANTS.items()
      if not row.config["architectures"][0].endswith("ForCausalLM")),
    *((name, "pad_token_id") for name, row in SCORING_VARIANTS.items()
      if FAMILIES[row.config["model_type"]].sequence_head is not FAMILIES["llama"].sequence_head
      or row.config["architectures"][0].endswith("ForCausalLM")),
}  # fmt: skip


def _other_values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        texts = {key: f"other {inner}" for key, inner in value.items()}
        return [texts, dict(list(value.items())[1:])] if len(value) > 1 else [texts]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    return ["other", ["other"]]


@pytest.mark.parametrize("variant", SCORING_VARIANTS)
def test_another_value_is_refused_or_makes_another_head(variant: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, variant)
    before = _read(folder, variant)
    written = (folder / "config.json").read_text()
    config = json.loads(written)
    general = SCORING_VARIANTS[variant].general
    for key in set(HEAD_KEYS) & set(config):
        hidden = key == "sbert_ce_default_activation_function" and general is not None
        if (variant, key) in CHANGES_NOTHING or hidden:
            continue
        for value in _other_values(config[key]):
            _change(folder, **{key: value})
            try:
                after = _read(folder, variant)
                load_weights(after)
            except ModelError:
                continue
            finally:
                (folder / "config.json").write_text(written)
            assert after != before, f"{key} = {value} changes nothing"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_of_a_head_are_those_of_transformers(model_type: str) -> None:
    head = FAMILIES[model_type].sequence_head
    stored = json.loads(DEFAULTS.read_text())[model_type]
    if head is None:
        return
    keys = [head.pooling, head.skipped_token]
    for layer in head.layers:
        keys += [layer.activation, layer.has_bias]
    found = {key.name: key.default for key in keys if isinstance(key, Key)}
    assert found == {name: stored[name] for name in found}


@pytest.mark.parametrize(
    "model_type", [name for name, row in FAMILIES.items() if row.lm_head is not None]
)
def test_an_lm_head_is_its_own_unless_the_file_says_it_is_tied(model_type: str) -> None:
    is_tied = json.loads(DEFAULTS.read_text())[model_type]["tie_word_embeddings"]
    assert is_tied is FAMILIES[model_type].ties_embeddings


def test_a_modular_head_ends_in_a_dense_which_may_name_its_labels(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "modernbert-modules")
    for changes, labels in (({"0": "good"}, ("good",)), ({"0": "a", "1": "b"}, ("LABEL_0",))):
        _change(folder, id2label=changes)
        assert _head(_read(folder, "modernbert-modules")).labels == labels
    place = folder / "modules.json"
    place.write_text(json.dumps(json.loads(place.read_text())[:-1]))
    with pytest.raises(ModelUnsupportedError, match="the last module is a LayerNorm; accepted: a"):
        _read(folder, "modernbert-modules")


# The weights of a head.


@pytest.mark.parametrize(
    ("variant", "name", "message"),
    [
        ("bert-reranker", "classifier.weight", r"tensor classifier.weight \[1, 32\] is missing"),
        ("bert-reranker", "bert.pooler.dense.bias", r"tensor bert.pooler.dense.bias .* is missing"),
        ("qwen2-answers", "lm_head.weight", r"tensor lm_head.weight \[\d+, 32\] is missing"),
    ],
)
def test_a_head_without_its_tensors(tmp_path: Path, variant: str, name: str, message: str) -> None:
    folder = write_tiny_model(tmp_path, variant)
    path = folder / "model.safetensors"
    arrays = {key: array.copy() for key, array in load_file(path).items()}
    del arrays[name]
    save_file(arrays, path)
    with pytest.raises(ModelWeightsError, match=f"^model.safetensors: {message}"):
        load_weights(_read(folder, variant))


@pytest.mark.parametrize(
    ("variant", "name"),
    [("qwen2-classifier", "score.bias"), ("modernbert-reranker", "head.dense.bias")],
)
def test_a_left_over_tensor_of_a_head(tmp_path: Path, variant: str, name: str) -> None:
    folder = write_tiny_model(tmp_path, variant)
    path = folder / "model.safetensors"
    arrays = {key: array.copy() for key, array in load_file(path).items()}
    save_file(arrays | {name: np.zeros(3, np.float32)}, path)
    with pytest.raises(ModelWeightsError, match=rf"tensor {name} \[3\] is left over"):
        load_weights(_read(folder, variant))


def test_some_tokenizers_tell_no_types(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "roberta-emotions")
    _change(folder, type_vocab_size=2)
    for kind, has_types in (
        ("RobertaTokenizer", False),
        ("BertTokenizer", True),
        ("ElectraTokenizer", True),  # as ms-marco-electra-base was trained
        ("AlbertTokenizer", True),
        ("TokenizersBackend", False),
    ):
        _change(folder, "tokenizer_config.json", tokenizer_class=kind)
        assert _head(_read(folder, "roberta-emotions")).has_token_types is has_types
        names = ["input_ids", *(() if has_types else ("token_type_ids",))]  # they decide
        _change(folder, "tokenizer_config.json", model_input_names=names)
        assert _head(_read(folder, "roberta-emotions")).has_token_types is not has_types
        _change(folder, "tokenizer_config.json", model_input_names=MISSING)


def test_types_that_no_file_tells_are_unknown(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-reranker")
    _change(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    assert _head(_read(folder, "bert-reranker")).has_token_types is None


# The kind of model in a folder.


@pytest.mark.parametrize("variant", ["bert-reranker", "llama-reward", "bert-cross-encoder"])
def test_an_embedder_takes_no_model_that_makes_scores(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    message = "is a reranker or classifier; use Reranker or Classifier .embedlib rerank, emb"
    with pytest.raises(ModelUnsupportedError, match=message):
        read_model_files(tiny_folder(variant))


@pytest.mark.parametrize("variant", ["bert", "qwen3"])
@pytest.mark.parametrize("kind", [None, "SentenceTransformer"])
def test_a_reranker_takes_no_model_that_makes_embeddings(
    variant: str, kind: str | None, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(variant), folder)
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    settings.pop("model_type", None)
    path.write_text(json.dumps(settings | ({} if kind is None else {"model_type": kind})))
    said = "no model_type" if kind is None else 'model_type = "SentenceTransformer"'
    with pytest.raises(ModelUnsupportedError) as caught:
        read_model_files(folder, with_head=True)
    assert str(caught.value) == (
        f"{folder} makes embeddings, not scores (config_sentence_transformers.json has {said}); "
        "use Embedder, or embedlib encode"
    )


@pytest.mark.parametrize(
    ("write", "way"),
    [
        (partial(write_tiny_model, variant="late-bert"), LATE_WAY),
        (partial(write_tiny_model, variant="late-pylate"), LATE_WAY),
        (partial(write_tiny_model, variant="late-stanford"), LATE_WAY),
        (write_sparse_model, "embedlib index --sparse, or output_value='sparse' of Embedder"),
    ],
)
def test_the_way_of_a_model_without_one_vector_per_text(
    write: Callable[[Path], Path], way: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupportedError, match=rf"makes embeddings, not scores .*; use {way}"):
        read_model_files(write(tmp_path / "model"), with_head=True)


def test_a_bare_decoder_says_what_is_missing(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(ModelUnsupportedError, match=r"LlamaForCausalLM.*template=.*\(--template\)"):
        read_model_files(tiny_folder("llama-bare"), with_head=True)


def test_an_lm_head_that_caps_its_logits_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "gemma2-reranker")
    _change(folder, architectures=["Gemma2ForCausalLM"])
    with pytest.raises(ModelUnsupportedError, match='model_type = "gemma2"'):
        read_model_files(folder, with_head=True, template="qwen3-reranker")


def test_what_a_head_divides_its_scores_by_is_refused_there_alone(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # Source: LlamaBidirectionalForSequenceClassification.forward of nvidia/llama-nemotron-rerank.
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("llama_bidirec"), folder)
    _change(folder, temperature=0.02)
    assert read_model_files(folder).spec.head is None  # an embedder divides by nothing
    (folder / "modules.json").unlink(missing_ok=True)
    _change(folder, architectures=["LlamaBidirectionalForSequenceClassification"], num_labels=1)
    with pytest.raises(ModelUnsupportedError, match=r"temperature = 0.02 .* accepted: 1.0"):
        read_model_files(folder, with_head=True)
    _change(folder, temperature=1)
    assert read_model_files(folder, with_head=True).spec.head is not None


def test_a_family_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "nomic_bert")
    (folder / "modules.json").unlink()
    _change(folder, architectures=["NomicBertForSequenceClassification"])
    with pytest.raises(ModelUnsupportedError, match="architectures"):
        read_model_files(folder, with_head=True)


# Templates.


def test_known_rerankers_are_found_by_their_hub_name() -> None:
    assert template_of("Qwen/Qwen3-Reranker-4B") == "qwen3-reranker"
    assert template_of("mixedbread-ai/mxbai-rerank-large-v2") == "mxbai-rerank-v2"
    assert template_of("zeroentropy/zerank-2-reranker") == template_of("zeroentropy/zerank-2")
    assert template_of("zeroentropy/zerank-2") == "zerank"
    assert template_of("BAAI/bge-reranker-v2-m3") is None


def test_an_unknown_template_is_named() -> None:
    with pytest.raises(ConfigError, match=r"template = 'x' is not known; known: qwen3-reranker, "):
        known_reranker("x")


def test_a_template_is_for_rerankers(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="is for rerankers"):
        read_model_files(tiny_folder("bert"), template="qwen3-reranker")


@pytest.mark.parametrize("name", ["qwen3-reranker", "mxbai-rerank-v2"])
def test_only_the_document_stands_at_the_end_of_a_body(name: str) -> None:
    template = known_reranker(name).template
    assert template.body.endswith("{document}")
    assert template.body.count("{query}") == 1
    assert ("{instruction}" in template.body) == bool(template.instruction)


def test_the_folder_s_instruction_takes_the_place_of_the_known_one(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "qwen3-logit-score")
    chat = {"method": "forward", "method_output_name": "logits"}
    modalities = {"text": chat, "message": chat | {"format": "flat"}}
    # As CrossEncoder saves a template that writes the answer's header only if it is asked to.
    asked = {"chat_template": {"add_generation_prompt": True}}
    settings = "sentence_bert_config.json"
    _change(folder, settings, modality_config=modalities, processing_kwargs=asked)
    general = "config_sentence_transformers.json"
    known = known_reranker("qwen3-reranker").template
    for name, instruction in ((None, known.instruction), ("code", "Find code.")):
        prompts = {"code": "Find code."}
        _change(folder, general, prompts=prompts, default_prompt_name=name)
        files = read_model_files(folder, with_head=True, template="qwen3-reranker")
        assert _head(files).template == replace(known, instruction=instruction)
        rows = files.module_tensors[1]
        assert isinstance(rows, AnswerRows)
        assert rows.true_token_id == 300  # the template in the folder
    _change(folder, general, default_prompt_name="other")
    with pytest.raises(ModelUnsupportedError, match='default_prompt_name = "other"'):
        read_model_files(folder, with_head=True, template="qwen3-reranker")


def test_a_default_prompt_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cross-encoder")
    general = "config_sentence_transformers.json"
    _change(folder, general, prompts={"query": "Q: "}, default_prompt_name="query")
    spec = read_model_files(folder, with_head=True).spec
    assert (spec.prompts, spec.default_prompt_name) == ({"query": "Q: "}, "query")
    _change(folder, general, default_prompt_name="web")
    with pytest.raises(ModelUnsupportedError, match='default_prompt_name = "web"'):
        read_model_files(folder, with_head=True)


def test_a_broken_tokenizer_of_the_answers_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "llama-bare")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer.json: cannot be read: "):
        read_model_files(folder, with_head=True, template="qwen3-reranker")


def test_a_tokenizer_without_the_answers_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "llama-bare")
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer.json: has no token 'yes'"):
        read_model_files(folder, with_head=True, template="qwen3-reranker")


def test_variants_of_both_kinds_have_names_of_their_own() -> None:
    assert not set(VARIANTS) & set(SCORING_VARIANTS)


# A chat template.


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_chat_template_is_told(place: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "qwen2-classifier")
    assert not _head(_read(folder, "qwen2-classifier")).has_chat_template
    if place == "chat_template.jinja":
        (folder / place).write_text(TEMPLATE)
    else:
        _change(folder, place, chat_template=TEMPLATE)
    assert _head(_read(folder, "qwen2-classifier")).has_chat_template
    with pytest.raises(ModelUnsupportedError, match=r"chat template.*template= \(qwen3-reranker, "):
        Reranker(folder)
    with Classifier(folder) as classifier:  # texts are not put into a template
        assert classifier.labels == ("a", "b", "c")


def test_a_chat_template_is_not_used_where_the_model_was_saved_for_plain_text(
    tmp_path: Path,
) -> None:
    folder = write_tiny_model(tmp_path, "bert-cross-encoder")
    _change(folder, "tokenizer_config.json", chat_template=TEMPLATE)
    assert not _head(_read(folder, "bert-cross-encoder")).has_chat_template


def test_a_known_template_takes_the_place_of_a_chat_template(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "qwen3-asked")
    _change(folder, "tokenizer_config.json", chat_template=TEMPLATE)
    with Reranker(folder, template="qwen3-reranker") as reranker:
        assert len(reranker.rank("query", ["the river", "a model"])) == 2


def test_with_a_template_settings_of_the_chat_template_count_for_nothing(tmp_path: Path) -> None:
    # As Qwen3-VL-Reranker has them, whose files Qwen3-Reranker's are like.
    folder = write_tiny_model(tmp_path, "qwen3-logit-score")
    before = read_model_files(folder, with_head=True, template="qwen3-reranker").spec
    output = {"method": "forward", "method_output_name": "logits"}
    for form in ("flat", "structured"):
        _change(
            folder,
            "sentence_bert_config.json",
            modality_config={"text": output, "message": output | {"format": form}},
            processing_kwargs={"chat_template": {"chat_template": "reranker"}},
        )
        spec = read_model_files(folder, with_head=True, template="qwen3-reranker").spec
        assert spec == before

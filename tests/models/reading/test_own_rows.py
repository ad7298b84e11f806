"""Folders of models with a class of their own, or with more in them than the model for texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from embedlib import Classifier, Embedder
from embedlib.cli import main
from embedlib.config import Config
from embedlib.errors import ConfigError, ModelUnsupportedError
from embedlib.models.opening import OpenedModel
from embedlib.models.reading import settings_file
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.spec import Dense, Normalize, Pooling, RoundTanh
from embedlib.models.weights.load import load_weights
from embedlib.testing.models.alibi_encoders import JINA_BERT
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.variant import pooling
from embedlib.testing.models.write import write_tiny_model, write_variant


def _change(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(values | changes))


def _nest(folder: Path) -> None:
    """Make a folder of the text model one of EmbeddingGemma 2: all of it, with an image tower."""
    text = json.loads((folder / "config.json").read_text())
    del text["architectures"]
    whole = {
        "architectures": ["EmbeddingGemma2Model"],
        "model_type": "embedding_gemma2",
        "image_token_id": 258880,
        "text_config": text,
        "vision_config": {"model_type": "gemma4_vision"},
        "audio_config": None,
    }
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = load_file(folder / "model.safetensors")
    stored = {f"language_model.{name}": array for name, array in tensors.items()}
    stored["vision_tower.weight"] = tensors["norm.weight"]
    save_file(stored, folder / "model.safetensors")


def test_the_text_half_of_embedding_gemma2_is_read_from_the_whole(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    alone = tiny_folder("embedding_gemma2_text")
    folder = Path(shutil.copytree(alone, tmp_path / "whole"))
    _nest(folder)
    files = read_model_files(folder)
    assert files.spec == read_model_files(alone).spec
    weights, expected = load_weights(files), load_weights(read_model_files(alone))
    assert set(weights) == set(expected)
    assert all((weights[role] == expected[role]).all() for role in expected)
    assert load_tokenizer(files).encode("a fox").ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_config": {}}, "text_config: model_type is missing"),
        ({"text_config": None}, "text_config: model_type is missing"),
        ({"text_config": {"model_type": "gemma"}}, 'text_config: model_type = "gemma"'),
        ({"new_key": 1}, "new_key = 1 is not a known key"),
        ({"auto_map": {"AutoModel": "own.Model"}}, "auto_map = .*never runs"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = "),
    ],
)
def test_what_stands_beside_the_text_half_is_checked(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = write_tiny_model(tmp_path, "embedding_gemma2_text")
    _nest(folder)
    _change(folder / "config.json", **changes)
    with pytest.raises(ModelUnsupportedError, match=f"^config.json: {message}"):
        read_model_files(folder)


def test_layers_of_embedding_gemma2_may_be_numbered_with_zeros(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    folder = write_tiny_model(tmp_path, "embedding_gemma2_text")
    heads = {"head_dim": 12, "num_key_value_heads": 1}
    _change(folder / "config.json", per_layer_config=dict.fromkeys(("01", "03"), heads))
    expected = read_model_files(tiny_folder("embedding_gemma2_text")).spec
    assert read_model_files(folder).spec == expected


def test_a_chat_template_that_is_known_to_write_texts_as_they_are(
    tmp_path: Path, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path, "embedding_gemma2_text")
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    modalities = dict.fromkeys(("text", "image", "audio", "video"), text)
    modalities["message"] = text | {"format": "structured"}
    settings = folder / "sentence_bert_config.json"
    _change(settings, modality_config=modalities)
    template = folder / "chat_template.jinja"
    template.write_text("{{ text }}\n")
    with pytest.raises(ModelUnsupportedError, match=r"modality_config = .*chat template"):
        read_model_files(folder)
    known = sha256(b"{{ text }}").hexdigest()
    monkeypatch.setattr(settings_file, "PLAIN_TEMPLATES", frozenset({known}))
    expected = read_model_files(tiny_folder("embedding_gemma2_text")).spec
    assert read_model_files(folder).spec == expected
    template.unlink()
    with pytest.raises(ModelUnsupportedError, match=r"modality_config = .*chat template"):
        read_model_files(folder)
    template.write_text("{{ text }}")
    # Without another modality a tokenizer renders it, which then adds no special tokens.
    _change(settings, modality_config={key: modalities[key] for key in ("text", "message")})
    with pytest.raises(ModelUnsupportedError, match=r"modality_config = "):
        read_model_files(folder)


def test_a_matrix_of_the_class_comes_behind_the_pooling(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    modules = read_model_files(tiny_folder("qwen3-voyage")).spec.modules
    matrix = Dense(in_features=32, out_features=40, has_bias=False, activation="identity")
    assert modules == (Pooling(modes=("mean",)), matrix, Normalize())
    folder = write_tiny_model(tmp_path, "qwen3-voyage")
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    flags = {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    _change(folder / "1_Pooling" / "config.json", **flags)
    with pytest.raises(ModelUnsupportedError, match=r"a matrix for every token, .* max; accepted"):
        read_model_files(folder)
    _change(folder / "1_Pooling" / "config.json", **pooling | {"word_embedding_dimension": 32})
    with pytest.raises(ModelUnsupportedError, match="word_embedding_dimension = 32"):
        read_model_files(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["num_labels"]
    (folder / "config.json").write_text(json.dumps(config))
    shutil.rmtree(folder / "1_Pooling")
    (folder / "modules.json").unlink()
    with pytest.raises(ModelUnsupportedError, match=r"^config.json: num_labels is missing; acc"):
        read_model_files(folder)


def test_gritlm_ends_as_in_its_own_library(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    spec = read_model_files(tiny_folder("mistral-gritlm")).spec
    assert spec.modules == (Pooling(modes=("mean",), include_prompt=False), Normalize())
    assert set(spec.encoder.windows) == {None}
    folder = write_tiny_model(tmp_path, "mistral-gritlm")
    # As sentence-transformers would save it.
    saved = tiny_folder("mistral")
    shutil.copy(saved / "modules.json", folder)
    shutil.copytree(saved / "1_Pooling", folder / "1_Pooling")
    with pytest.raises(ModelUnsupportedError, match=r"^modules.json: .* delete modules.json"):
        read_model_files(folder)


@pytest.mark.parametrize("name", ["st_quantize.Other", "other.FlexibleQuantizer"])
def test_whole_numbers_come_from_the_known_module_alone(
    tmp_path: Path, tiny_folder: Callable[[str], Path], name: str
) -> None:
    assert read_model_files(tiny_folder("pplx")).spec.modules[1:] == (RoundTanh(),)
    folder = write_tiny_model(tmp_path, "pplx")
    entries = json.loads((folder / "modules.json").read_text())
    entries[2]["kwargs"] = ["quantization"]
    (folder / "modules.json").write_text(json.dumps(entries))
    assert read_model_files(folder).spec.modules[1:] == (RoundTanh(),)
    entries[2]["type"] = name
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ModelUnsupportedError, match=r"modules.json: \[2\]: (kwargs|type) = "):
        read_model_files(folder)


def test_a_suffix_goes_behind_every_text(tmp_path: Path) -> None:
    plain, folder = (write_tiny_model(tmp_path / name, "qwen3") for name in ("plain", "suffixed"))
    of_bytes = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    for place in (plain, folder):  # a text before a suffix is decoded, as published tokenizers do
        _change(place / "tokenizer.json", decoder={"type": "ByteLevel"} | of_bytes)
    general = folder / "config_sentence_transformers.json"
    end = "<|im_end|>\n"
    _change(general, suffix=end, prompts={"query": "the "}, default_prompt_name=None)
    with pytest.raises(ModelUnsupportedError, match=r'suffix = "<.* is not a known key'):
        read_model_files(folder)
    entries = json.loads((folder / "modules.json").read_text())
    entries[0]["type"] = "modeling_zembed.ZembedTransformer"
    (folder / "modules.json").write_text(json.dumps(entries))
    assert read_model_files(folder).spec.suffix == end
    with Embedder(folder) as embedder, Embedder(plain, prompts={"query": "the "}) as expected:
        for text, prompt in (("a quick", ""), ("a quick", "of "), ("", "of ")):
            found = embedder.encode(text, prompt=prompt)
            assert np.array_equal(found, expected.encode(f"{text}{end}", prompt=prompt))
        found = embedder.encode_query(["quick"])
        assert np.array_equal(found, expected.encode_query([f"quick{end}"]))
        assert embedder.fingerprint != expected.fingerprint
        # A text that is too long is shortened, and keeps what goes behind it.
        limit = len(expected.tokenizer.encode(f"the{end}").ids)
        with Embedder(folder, max_seq_tokens=limit, on_truncate="ignore") as short:
            assert np.array_equal(short.encode("the quick fox"), expected.encode(f"the{end}"))
        with (
            Embedder(folder, max_seq_tokens=2) as short,
            pytest.raises(ConfigError, match="what goes behind the text has"),
        ):
            short.encode("the")
    shown = CliRunner().invoke(main, ["inspect", str(folder)]).output
    assert "every text ends in" in shown
    for wrong in (" fox.", None):
        _change(general, suffix=wrong)
        with pytest.raises(ModelUnsupportedError, match=r'suffix = .* "<\|im_end\|>'):
            read_model_files(folder)
    _change(general, suffix=end)
    entries[0]["type"] = "other.ZembedTransformer"
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(ModelUnsupportedError, match=r"\[0\]: type = .*ZembedTransformer"):
        read_model_files(folder)


@pytest.mark.parametrize(("flag", "ends"), [(True, 1), (False, 0)])
def test_a_tokenizer_of_the_folder_adds_the_end_that_its_flag_asks_for(
    tmp_path: Path, flag: bool, ends: int
) -> None:
    folder = write_tiny_model(tmp_path, "qwen2-both-ways")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(content))
    _change(folder / "tokenizer_config.json", add_eos_token=flag)
    ids = load_tokenizer(read_model_files(folder)).encode("a fox").ids
    without = load_tokenizer(read_model_files(folder)).encode("a fox", add_special_tokens=False).ids
    end = [token["id"] for token in content["added_tokens"] if token["content"] == "<|end|>"]
    assert ids == without + end * ends


def test_a_tokenizer_of_the_folder_without_the_flag_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "qwen2-both-ways")
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    del values["add_eos_token"]
    path.write_text(json.dumps(values))
    with pytest.raises(
        ModelUnsupportedError, match=r"^tokenizer_config.json: add_eos_token is mis"
    ):
        load_tokenizer(read_model_files(folder))


def _as_flash(folder: Path) -> None:
    """Rename the tensors of an XLM-RoBERTa.

    Source: `remap_state_dict` in convert_roberta_weights_to_flash.py of
    huggingface.co/jinaai/xlm-roberta-flash-implementation.
    """
    tensors = load_file(folder / "model.safetensors")
    names = (
        ("embeddings.LayerNorm", "emb_ln"),
        ("encoder.layer.", "encoder.layers."),
        ("attention.output.LayerNorm", "norm1"),
        ("attention.output.dense", "mixer.out_proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("output.LayerNorm", "norm2"),
    )
    renamed: dict[str, Any] = {}
    fused: dict[str, list[Any]] = {}
    for name in sorted(tensors, key=lambda name: name.replace(".query.", ".a.")):  # q, k, v
        new = name
        for old, other in names:
            new = new.replace(old, other, 1)
        stem, mark, leaf = new.partition(".attention.self.")
        if mark:
            fused.setdefault(f"{stem}.mixer.Wqkv.{leaf.split('.')[1]}", []).append(tensors[name])
        else:
            renamed[new] = tensors[name]
    renamed |= {name: np.concatenate(parts) for name, parts in fused.items()}
    save_file(renamed, folder / "model.safetensors")
    place = "jinaai/jina-reranker-v2-base-multilingual--"
    _change(
        folder / "config.json",
        auto_map={
            "AutoConfig": f"{place}configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModelForSequenceClassification": (
                f"{place}modeling_xlm_roberta.XLMRobertaForSequenceClassification"
            ),
        },
        load_trained_adapters=False,
        lora_adaptations=None,
        lora_alpha=1,
        lora_dropout_p=0.0,
        lora_main_params_trainable=False,
        lora_rank=4,
        emb_pooler=None,
        truncate_dim=None,
        use_flash_attn=True,
    )


def test_an_xlm_roberta_under_the_names_of_flash_attention(tmp_path: Path) -> None:
    plain = write_tiny_model(tmp_path / "plain", "xlm-roberta-reranker")
    flash = write_tiny_model(tmp_path / "flash", "xlm-roberta-reranker")
    _as_flash(flash)
    before, after = (read_model_files(folder, with_head=True) for folder in (plain, flash))
    assert after.spec.encoder.family == "xlm-roberta-flash"
    encoder = replace(after.spec.encoder, family="xlm-roberta")
    assert replace(after.spec, encoder=encoder) == before.spec
    expected, found = load_weights(before), load_weights(after)
    assert found.keys() == expected.keys()
    for role in expected:
        np.testing.assert_array_equal(found[role], expected[role])
    _change(flash / "config.json", position_embedding_type="rotary")
    with pytest.raises(ModelUnsupportedError, match='position_embedding_type = "rotary"'):
        read_model_files(flash, with_head=True)


def test_a_jina_bert_with_a_head(tmp_path: Path) -> None:
    """Like jina-reranker-v1, whose config.json names no label, and another class."""
    own = "jinaai/jina-bert-implementation--modeling_bert."
    row = replace(
        VARIANTS["jina_bert"],
        config=JINA_BERT
        | {
            "auto_map": {
                "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
                "AutoModel": f"{own}JinaBertModel",
                "AutoModelForSequenceClassification": f"{own}JinaBertForSequenceClassification",
            }
        },
        modules=(),
        settings=None,
        prefix="bert.",
        with_head=True,
    )
    folder = write_variant(tmp_path / "head", "jina", row)
    spec = read_model_files(folder, with_head=True).spec
    assert spec.encoder.family == "jina_bert"
    assert spec.head is not None
    assert (spec.head.labels, spec.head.reranker_activation) == (("LABEL_0",), "sigmoid")
    tensors = load_file(folder / "model.safetensors")
    without = {"architectures": ["JinaBertModel"], "auto_map": {"AutoModel": f"{own}JinaBertModel"}}
    alone = write_variant(
        tmp_path / "alone",
        "jina",
        replace(
            row,
            config=JINA_BERT | without,
            modules=(pooling("cls_token", dim=36),),
            with_head=False,
        ),
    )
    with Embedder(alone, precision="float32") as embedder:
        first = embedder.encode("the quick fox")
    dense, last = (
        [tensors[f"{name}.{leaf}"] for leaf in ("weight", "bias")]
        for name in ("bert.pooler.dense", "classifier")
    )
    logit = (np.tanh(first @ dense[0].T + dense[1]) @ last[0].T + last[1]).item()
    with Classifier(folder, precision="float32") as classifier:
        found = classifier.predict("the quick fox")[0]["score"]
    assert found == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-5)
    opened = OpenedModel.find(str(folder), Config())
    assert opened.has_head  # what the server, compile and inspect ask
    assert not OpenedModel.find(str(alone), Config()).has_head
    with pytest.raises(ModelUnsupportedError, match="is a reranker or classifier; use Reranker"):
        Embedder(folder)
    _change(alone / "config.json", **json.loads((folder / "config.json").read_text()))
    assert not OpenedModel.find(str(alone), Config()).has_head  # its weights hold none
    _change(folder / "config.json", auto_map={"AutoModel": f"{own}JinaBertModel"})
    with pytest.raises(ModelUnsupportedError, match=r"architectures = .*ForSequenceClassification"):
        read_model_files(folder, with_head=True)


def test_texts_of_a_scaled_nomic_bert_end_at_the_trained_length(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "nomic_bert-own-keys")  # as arctic-embed-m-long has it
    before = read_model_files(folder).spec
    _change(folder / "config.json", rotary_scaling_factor=2)
    spec = read_model_files(folder).spec
    assert spec.max_seq_tokens == 30 < before.max_seq_tokens
    assert spec.max_seq_tokens_source == "config.json: max_trained_positions"
    assert spec.encoder.rope == before.encoder.rope

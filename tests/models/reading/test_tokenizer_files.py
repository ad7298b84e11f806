from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, processors

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.models.reading.tokenizer_json import LONGEST_PIECE, refusing
from embedlib.testing.models.table import VARIANTS
from embedlib.testing.models.write import write_tiny_model

if TYPE_CHECKING:
    from conftest import Golden


def _change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _load(folder: Path) -> Tokenizer:
    return load_tokenizer(read_model_files(folder))


@pytest.mark.parametrize("variant", VARIANTS)
def test_ids_are_those_of_sentence_transformers(
    variant: str, tiny_folder: Callable[[str], Path], golden: Callable[[str], Golden]
) -> None:
    files = read_model_files(tiny_folder(variant))
    tokenizer = load_tokenizer(files)
    # The truncation and padding settings in its file are removed; see the BERT variants.
    assert tokenizer.truncation is None
    assert tokenizer.padding is None
    tokenizer.enable_truncation(files.spec.max_seq_tokens)
    stored = golden(variant)
    for case in stored.cases:
        name = case.prompt_name or files.spec.default_prompt_name
        prompt = files.spec.prompts[name] if name else ""
        ids = [tokenizer.encode(prompt + text).ids for text in stored.texts]
        assert ids == case.ids


@pytest.mark.parametrize(
    ("changes", "text", "same_as"),
    [
        ({"do_lower_case": False}, "FOX", "[UNK]"),
        ({"do_lower_case": True}, "FOX", "fox"),
        ({"do_lower_case": False, "strip_accents": True}, "é", "e"),
        ({"tokenize_chinese_chars": False}, "你好", "你##好"),
    ],
)
def test_bert_takes_its_normalizer_from_tokenizer_config(
    tmp_path: Path, changes: dict[str, Any], text: str, same_as: str
) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _change(folder / "tokenizer_config.json", **changes)
    tokenizer = _load(folder)
    assert "".join(tokenizer.encode(text, add_special_tokens=False).tokens) == same_as


def test_a_plain_class_takes_everything_from_tokenizer_json(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _change(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        do_lower_case=False,
    )
    assert _load(folder).encode("FOX", add_special_tokens=False).tokens == ["fox"]


def test_roberta_takes_the_space_before_a_text_from_tokenizer_config(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "roberta")
    assert _load(folder).encode("fox").tokens[1] == "fox"
    _change(folder / "tokenizer_config.json", add_prefix_space=True)
    assert _load(folder).encode("fox").tokens[1] == "Ġfox"


@pytest.mark.parametrize(
    ("flags", "first", "last"),
    [
        ({"add_bos_token": True, "add_eos_token": True}, "<s>", "</s>"),
        ({"add_bos_token": None, "add_eos_token": True}, "<s>", "</s>"),
        ({"add_bos_token": True, "add_eos_token": False}, "<s>", "▁fox"),
        # Without flags tokenizer.json decides; here it adds only the first token.
        ({"add_bos_token": None, "add_eos_token": None}, "<s>", "▁fox"),
    ],
)
@pytest.mark.parametrize("end", ["</s>", {"content": "</s>", "lstrip": False}])
def test_flags_of_a_llama_tokenizer_decide_on_its_ends(
    tmp_path: Path, flags: dict[str, Any], first: str, last: str, end: object
) -> None:
    # As in e5-mistral-7b-instruct: its tokenizer.json adds <s> but not </s>.
    folder = write_tiny_model(tmp_path, "mistral")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _change(folder / "tokenizer_config.json", **flags, eos_token=end)
    tokens = _load(folder).encode("fox").tokens
    assert (tokens[0], tokens[-1]) == (first, last)


@pytest.mark.parametrize("has_names", [True, False])
def test_flags_of_a_gemma_tokenizer_decide_on_its_ends(tmp_path: Path, has_names: bool) -> None:
    folder = write_tiny_model(tmp_path, "gemma2")
    names = {} if has_names else {"bos_token": None, "eos_token": None}
    _change(folder / "tokenizer.json", post_processor=None)
    _change(folder / "tokenizer_config.json", add_eos_token=False, **names)
    assert _load(folder).encode("fox").tokens == ["<bos>", "fox"]
    _change(folder / "tokenizer_config.json", add_eos_token=True)
    assert _load(folder).encode("fox").tokens == ["<bos>", "fox", "<eos>"]


@pytest.mark.parametrize(
    ("variant", "flags", "message"),
    [
        ("mistral", {"add_bos_token": False}, 'add_bos_token = false .*json adds "<s>"'),
        ("gemma2", {"add_bos_token": False}, 'add_bos_token = false .*json adds "<bos>"'),
        ("gemma2", {"add_eos_token": False}, 'add_eos_token = false .*json adds "<eos>"'),
    ],
)
def test_a_flag_that_turns_off_a_token_of_tokenizer_json_is_refused(
    tmp_path: Path, variant: str, flags: dict[str, bool], message: str
) -> None:
    # transformers 4 leaves the token out, transformers 5 adds it.
    folder = write_tiny_model(tmp_path, variant)
    _change(folder / "tokenizer_config.json", **flags)
    with pytest.raises(ModelUnsupportedError, match=f"^tokenizer_config.json: {message}"):
        _load(folder)


@pytest.mark.parametrize(
    ("variant", "kind", "token"),
    [
        ("mpnet", "MPNetTokenizer", "[UNK]"),
        ("distilbert", None, "[UNK]"),
        # The model_type has no class, so transformers reads tokenizer.json alone.
        ("modernbert", "BertTokenizer", "fox"),
    ],
)
def test_flags_count_for_the_class_of_the_model_type_alone(
    tmp_path: Path, variant: str, kind: str | None, token: str
) -> None:
    folder = write_tiny_model(tmp_path, variant)
    _change(folder / "tokenizer_config.json", do_lower_case=False, tokenizer_class=kind)
    assert _load(folder).encode("FOX", add_special_tokens=False).tokens == [token]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("eos_token", "<unk>", 'eos_token = "<unk>" is not supported; accepted: "</s>", as in the'),
        ("bos_token", "</s>", 'bos_token = "</s>" is not supported; accepted: "<s>", as in the po'),
    ],
)
def test_ends_that_are_not_those_of_tokenizer_json_are_refused(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    # transformers 4 takes the tokens of the flags, transformers 5 those of tokenizer.json.
    folder = write_tiny_model(tmp_path, "mistral")
    flags = {"add_bos_token": True, "add_eos_token": True, "tokenizer_class": "LlamaTokenizer"}
    _change(folder / "tokenizer_config.json", **flags)
    template = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}, {"id": "</s>", "ids": [2]}
    ends = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {one["id"]: {**one, "tokens": [one["id"]]} for one in template},
    }
    _change(folder / "tokenizer.json", post_processor=ends)
    assert _load(folder).encode("fox").tokens == ["<s>", "▁fox", "</s>"]
    _change(folder / "tokenizer_config.json", **{key: value})
    with pytest.raises(ModelUnsupportedError, match=f"^tokenizer_config.json: {message}"):
        _load(folder)


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_added_token_without_an_embedding_is_refused(tmp_path: Path, is_nested: bool) -> None:
    # Qwen3 and Llama 3 have their template beside ByteLevel, in a Sequence.
    folder = write_tiny_model(tmp_path, "qwen3")
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"[SEP]": {"id": "[SEP]", "ids": [9999], "tokens": ["[SEP]"]}},
    }
    parts = {"type": "Sequence", "processors": [template]}
    _change(folder / "tokenizer.json", post_processor=parts if is_nested else template)
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer.json: .*9999"):
        _load(folder)


def test_special_tokens_can_be_text(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    assert _load(folder).encode("[SEP]", add_special_tokens=False).tokens == ["[SEP]"]
    _change(folder / "tokenizer_config.json", split_special_tokens=True)
    assert _load(folder).encode("[SEP]", add_special_tokens=False).tokens != ["[SEP]"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"truncation_side": "left"}, 'truncation_side = "left"'),
        (
            {"eos_token": "<nowhere>"},
            'eos_token = "<nowhere>" .*; accepted: a token of tokenizer.j',
        ),
        ({"do_lower_case": "yes", "tokenizer_class": "BertTokenizer"}, None),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str | None
) -> None:
    folder = write_tiny_model(tmp_path, "mistral")
    _change(folder / "tokenizer_config.json", **changes)
    if message is None:
        # Only a BERT normalizer is replaced.
        assert _load(folder).normalizer is None
        return
    with pytest.raises(ModelUnsupportedError, match=f"^tokenizer_config.json: {message}"):
        _load(folder)


def test_the_side_of_tokenizer_json_counts_where_no_other_file_names_one(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(8, direction="left")
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer.json: truncation.direction = 'l"):
        _load(folder)
    _change(folder / "tokenizer_config.json", truncation_side="right")
    assert _load(folder).truncation is None


@pytest.mark.parametrize(
    ("variant", "changes", "is_refused"),
    [
        ("bert", {}, True),
        ("bert", {"model_input_names": ["input_ids", "token_type_ids"]}, True),
        ("bert", {"model_input_names": ["input_ids", "attention_mask"]}, False),
        ("modernbert", {}, False),  # has no types
    ],
)
def test_types_that_tokenizer_json_gives_to_a_text_are_refused(
    tmp_path: Path, variant: str, changes: dict[str, Any], is_refused: bool
) -> None:
    folder = write_tiny_model(tmp_path, variant)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"]["single"][1]["Sequence"]["type_id"] = 1
    path.write_text(json.dumps(content))
    plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
    _change(folder / "tokenizer_config.json", **plain, **changes)
    if not is_refused:
        assert _load(folder).encode("fox").type_ids == [0, 1, 0]
        return
    with pytest.raises(ModelUnsupportedError, match=r"gives the tokens of a text .* \[0, 1, 0\]"):
        _load(folder)


HALF = '"\\\\ud800"'
"""As JSON and messages write half of a character."""


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tokenizer_config.json", {"pad_token": "\ud800"}, f"pad_token = {HALF}"),
        (
            "tokenizer_config.json",
            {"my_token": {"__type": "AddedToken", "content": "\ud800"}},
            "my_token = ",
        ),
        ("tokenizer_config.json", {"extra_special_tokens": ["\ud800"]}, "extra_special_tokens: 0"),
        ("config_sentence_transformers.json", {"query_prefix": "\ud800"}, f"query_prefix = {HALF}"),
    ],
)
def test_a_text_that_no_tokenizer_takes_is_named(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    folder = write_tiny_model(tmp_path, "late-pylate")
    _change(folder / name, **changes)
    with pytest.raises(ModelUnsupportedError, match=f"^{name}: {message}"):
        _load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token": {}}, r"pad_token = {} is not supported"),
        ({"pad_token": {"content": 5}}, "pad_token = "),
        ({"pad_token": {"content": "[PAD]", "lstrip": 1}}, "pad_token = "),
        ({"pad_token": 5}, "pad_token = 5"),
        ({"extra_special_tokens": [None]}, "extra_special_tokens: 0 = null"),
        ({"extra_special_tokens": {"a": None}}, "extra_special_tokens: a = null"),
        ({"extra_special_tokens": "a"}, 'extra_special_tokens = "a"'),
        ({"added_tokens_decoder": {"-1": {"content": "a"}}}, "added_tokens_decoder: -1 = "),
        ({"added_tokens_decoder": {"1": "a"}}, 'added_tokens_decoder: 1 = "a"'),
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _change(folder / "tokenizer_config.json", **changes)
    with pytest.raises(ModelUnsupportedError, match=f"^tokenizer_config.json: {message}"):
        _load(folder)


def test_a_token_that_the_class_has_is_one_where_no_file_names_it(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    content = json.loads((folder / "tokenizer.json").read_text())
    kept = [token for token in content["added_tokens"] if token["content"] != "[MASK]"]
    _change(folder / "tokenizer.json", added_tokens=kept)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert _load(folder).encode("[MASK]", add_special_tokens=False).tokens == ["[MASK]"]


def test_the_token_that_tokenizer_json_pads_with_is_a_token(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "modernbert")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_token="<p>")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("pad_token", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert _load(folder).encode("<p>", add_special_tokens=False).tokens == ["<p>"]


def test_tokens_of_older_folders_keep_their_flags(tmp_path: Path) -> None:
    """Tokens with flags come before those without; an id may be 0."""
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "added_tokens.json").write_text(json.dumps({"[PAD]": 0}))
    last = {"__type": "AddedToken", "content": "<last>", "lstrip": True}
    _change(folder / "tokenizer_config.json", a_token="<a>", z_token=last)
    tokenizer = _load(folder)
    assert tokenizer.token_to_id("<last>") + 1 == tokenizer.token_to_id("<a>")
    tokens = tokenizer.encode("fox <last>", add_special_tokens=False)
    assert tokens.offsets[1] == (3, 10)


def test_a_missing_tokenizer_comes_with_the_remedy(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer.json: .*save_pretrained"):
        _load(folder)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert-cls-dense")
    (folder / "0_Transformer" / "tokenizer.json").write_text('{"version": 1')
    with pytest.raises(ModelUnsupportedError, match=r"^0_Transformer/tokenizer.json: cannot be"):
        _load(folder)


@pytest.mark.parametrize("variant", ["mistral", "xlm-roberta"])
def test_a_piece_with_which_the_library_crashes_is_refused(tmp_path: Path, variant: str) -> None:
    folder = write_tiny_model(tmp_path, variant)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"][42][0] = "é" * (LONGEST_PIECE + 1)
    path.write_text(json.dumps(content))
    with pytest.raises(ModelUnsupportedError, match=r'"éé.*of 4097 characters; accepted'):
        _load(folder)


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    _change(folder / "config.json", vocab_size=100)
    with pytest.raises(
        ModelUnsupportedError,
        match=r'^tokenizer.json: the token "##al" has the id 186; .* 100 of config.json$',
    ):
        _load(folder)


def test_added_tokens_without_rows_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "bert")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    more = [f"<{number}>" for number in range(3)]  # as many as there are rows to spare
    _change(folder / "tokenizer_config.json", extra_special_tokens=more)
    assert _load(folder).token_to_id("<2>") == size - 1
    _change(folder / "tokenizer_config.json", extra_special_tokens=[*more, "<3>"])
    with pytest.raises(ModelUnsupportedError, match=f'the token "<3>" has the id {size}; acc'):
        _load(folder)


def test_a_lowercase_that_sentence_transformers_saved_is_read(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "roberta")
    _change(folder / "tokenizer.json", normalizer={"type": "Lowercase"})
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer.json: normalizer = "):
        _load(folder)
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert _load(folder).encode("FOX").ids == _load(folder).encode("fox").ids


@pytest.mark.parametrize(("add_eos", "end"), [(True, ["</s>"]), (False, [])])
def test_flags_of_a_llama_tokenizer_count_for_pairs_too(
    tmp_path: Path, add_eos: bool, end: list[str]
) -> None:
    folder = write_tiny_model(tmp_path, "mistral")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.save(str(folder / "tokenizer.json"))
    _change(folder / "tokenizer_config.json", add_bos_token=True, add_eos_token=add_eos)
    # As `update_post_processor` of transformers 4.
    expected = ["<s>", "▁fox", *end, "<s>", "▁dog", *end]
    assert _load(folder).encode("fox", "dog").tokens == expected


def test_an_error_without_words_is_told_by_its_name() -> None:
    message = r"^tokenizer\.json: cannot be read: MemoryError$"
    with pytest.raises(ModelUnsupportedError, match=message), refusing("tokenizer.json"):
        raise MemoryError


def test_an_interrupt_is_no_error_of_the_file() -> None:
    with pytest.raises(KeyboardInterrupt), refusing("tokenizer.json"):
        raise KeyboardInterrupt


def test_a_marker_is_whole_as_it_is_written_alone(tmp_path: Path) -> None:
    """What a text has in other letters stays text, though the model lower-cases."""
    tokenizer = _load(write_tiny_model(tmp_path, "late-pylate"))
    assert tokenizer.encode("[unused0]fox").tokens == ["[CLS]", "[unused0]", "fox", "[SEP]"]
    assert "[unused0]" not in tokenizer.encode("[UNUSED0]fox").tokens
    tokenizer.encode_special_tokens = True
    assert "[unused0]" not in tokenizer.encode("[unused0]fox").tokens

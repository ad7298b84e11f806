"""Tokenizers of the classes of transformers: built as there, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from tests.campaign.tokenizer_edits import BASES, TEXTS, digest, draw, read, write, write_base

GOLDEN = json.loads((Path(__file__).parents[2] / "goldens" / "tokenizer_edits.json").read_text())
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
UNDERLINES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
LLAMA_2 = {
    "type": "Sequence",
    "normalizers": [{"type": "Prepend", "prepend": "▁"}, UNDERLINES],
}
LOWERCASE = {"type": "Lowercase"}
NEW = {"content": "<new>", "lstrip": True, "special": True}


def _load(folder: Path) -> Tokenizer:
    return load_tokenizer(read_model_files(folder))


def _edited(folder: Path, base: str, file: str, key: str, value: Any) -> Path:
    """Write a folder with another value under a key, which may be `outer.inner`."""
    write_base(folder, base)
    content = read(folder / file)
    *outer, last = key.split(".")
    inner = content
    for name in outer:
        inner = inner[name]
    inner[last] = value
    write(folder / file, content)
    return folder


@pytest.mark.parametrize("base", BASES)
def test_edited_folders_are_as_in_transformers_or_refused(base: str, tmp_path: Path) -> None:
    num_read = 0
    for number, (edit, expected) in enumerate(GOLDEN["rows"][base]):
        folder = tmp_path / str(number)
        assert draw(folder, base, number) == edit
        found = _try(folder)
        if isinstance(found, str):
            assert number > 0, "the folder without an edit"
            assert "\n" not in found
        elif expected is not None:
            ids = [found.encode(text).ids for text in TEXTS]
            assert digest([*ids, found.encode(*TEXTS[:2]).ids]) == expected, edit
            num_read += 1
    assert num_read >= 5


def _try(folder: Path) -> Tokenizer | str:
    """Return the tokenizer, or the message that refuses it."""
    try:
        return _load(folder)
    except ModelUnsupportedError as error:
        return str(error)


@pytest.mark.parametrize(
    ("base", "flags", "is_read"),
    [
        # BERT's own normalizer lower-cases, so that a step more changes nothing.
        ("bert", {}, True),
        ("bert", {"do_lower_case": False}, False),
        ("roberta", {}, False),
        ("modernbert", {}, True),  # takes all of tokenizer.json
    ],
)
def test_lower_casing_that_the_class_leaves_out_is_refused(
    tmp_path: Path, base: str, flags: dict[str, bool], is_read: bool
) -> None:
    # As sentence-transformers saves a model that it loaded with do_lower_case.
    write_base(tmp_path, base)
    content = read(tmp_path / "tokenizer.json")
    present = [content["normalizer"]] if content["normalizer"] else []
    content["normalizer"] = {"type": "Sequence", "normalizers": [LOWERCASE, *present]}
    write(tmp_path / "tokenizer.json", content)
    config = tmp_path / "tokenizer_config.json"
    write(config, read(config) | flags)
    found = _try(tmp_path)
    if isinstance(found, str):
        assert not is_read
        assert found.startswith("tokenizer.json: normalizer = ")
    else:
        assert is_read
        assert found.encode("FOX").ids == found.encode("fox").ids


@pytest.mark.parametrize(
    ("base", "key", "value", "message"),
    [
        ("bert", "normalizer.clean_text", False, "normalizer.clean_text = false, but BertTok"),
        ("bert", "pre_tokenizer", None, "pre_tokenizer = null, but BertTokenizer"),
        ("bert", "model.max_input_chars_per_word", 5, "model.max_input_chars_per_word = 5, but"),
        ("bert", "model.unk_token", "a", 'model.unk_token = "a", but BertTokenizer'),
        ("mpnet", "post_processor", None, "post_processor = null, but MPNetTokenizer"),
        ("roberta", "normalizer", LOWERCASE, "normalizer = .*Lowercase.*, but Rob"),
        (
            "roberta",
            "pre_tokenizer.use_regex",
            False,
            "pre_tokenizer.use_regex = false, but Roberta",
        ),
        ("xlm-roberta", "model.unk_id", 0, "model.unk_id = 0, but XLMRobertaTokenizer"),
        ("xlm-roberta", "normalizer", {"type": "NFC"}, "normalizer = .*NFC.*, but XLMRoberta"),
        ("llama", "normalizer", LLAMA_2, "normalizer = .*Prepend.*, but LlamaTokenizer"),
        ("llama", "model.byte_fallback", False, "model.byte_fallback = false, but Llama"),
        ("gemma", "normalizer", None, "normalizer = null, but GemmaTokenizer"),
        ("gemma", "model.dropout", 0.5, "model.dropout = 0.5 gives other ids at every call"),
        ("qwen2", "normalizer", None, r'normalizer = null, but Qwen2Tokenizer.* \{"type": "NFC"\}'),
    ],
)
def test_a_file_that_says_something_else_than_its_class_is_refused(
    tmp_path: Path, base: str, key: str, value: object, message: str
) -> None:
    _edited(tmp_path, base, "tokenizer.json", key, value)
    with pytest.raises(ModelUnsupportedError, match=f"^tokenizer.json: {message}") as caught:
        _load(tmp_path)
    assert "\n" not in str(caught.value)
    if "but" in message:
        # The message says what to do, and that helps.
        config = read(tmp_path / "tokenizer_config.json")
        assert '"PreTrainedTokenizerFast"' in str(caught.value)
        plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
        write(tmp_path / "tokenizer_config.json", config | plain)
        assert _load(tmp_path).encode("hello").ids


@pytest.mark.parametrize(
    ("base", "kind", "flags", "message"),
    [
        ("distilbert", "DistilBertTokenizer", {}, None),
        ("bert", "DistilBertTokenizerFast", {"strip_accents": True}, None),  # as null does
        (
            *("distilbert", "DistilBertTokenizer", {"do_lower_case": False}),
            "normalizer.lowercase = true, but BertTokenizer, .* 5.23 takes for .* has false; to us",
        ),
        (
            *("bert", "DistilBertTokenizerFast", {"strip_accents": False}),
            "normalizer.strip_accents = null, but BertTokenizer, .* has false; to use tokenizer.js",
        ),
        ("bert", "RobertaTokenizer", {}, 'model.type = "WordPiece", but RobertaTokenizer, which '),
        ("mpnet", "BertTokenizer", {}, "post_processor.pair = .*, but BertTokenizer, which tran"),
        ("mistral", "LlamaTokenizer", {"legacy": True}, None),  # no release takes it
        ("bert", "PreTrainedTokenizerFast", {"do_lower_case": False}, None),
    ],
)
def test_a_class_that_only_later_releases_take_must_not_change_ids(
    tmp_path: Path, base: str, kind: str, flags: dict[str, bool], message: str | None
) -> None:
    expected = _load(write_base(tmp_path / "usual", base))
    folder = _edited(tmp_path / "named", base, "tokenizer_config.json", "tokenizer_class", kind)
    write(
        folder / "tokenizer_config.json",
        read(folder / "tokenizer_config.json") | flags,
    )
    if message is None:
        found = _load(folder)
        assert [found.encode(text).ids for text in TEXTS] == [
            expected.encode(text).ids for text in TEXTS
        ]
    else:
        with pytest.raises(ModelUnsupportedError, match=f"^tokenizer.json: {message}"):
            _load(folder)


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer"),
    [
        (None, {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}),
        (SPACES, METASPACE),
        (
            {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Strip", "strip_left": False, "strip_right": True},
                    SPACES | {"content": "▁"},
                ],
            },
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        ),
    ],
)
def test_files_by_all_converters_of_xlm_roberta_give_the_ids_of_today(
    tmp_path: Path, normalizer: object, pre_tokenizer: object
) -> None:
    expected = _load(write_base(tmp_path / "today", "xlm-roberta"))
    folder = _edited(tmp_path / "old", "xlm-roberta", "tokenizer.json", "normalizer", normalizer)
    write(
        folder / "tokenizer.json",
        read(folder / "tokenizer.json") | {"pre_tokenizer": pre_tokenizer},
    )
    found = _load(folder)
    for text in (*TEXTS, "trailing \u2003"):
        assert found.encode(text).ids == expected.encode(text).ids


def test_a_class_with_scores_takes_no_vocabulary_without(tmp_path: Path) -> None:
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    _edited(tmp_path, "xlm-roberta", "tokenizer.json", "model", model)
    told = r'^tokenizer.json: model.type = "BPE", but XLMRobertaTokenizer'
    with pytest.raises(ModelUnsupportedError, match=told):
        _load(tmp_path)


def test_scores_are_those_that_python_reads(tmp_path: Path) -> None:
    score = -14.111569944278905  # the library's reader of JSON takes it for its neighbour
    folder = _edited(tmp_path, "xlm-roberta", "tokenizer.json", "normalizer", None)
    content = read(folder / "tokenizer.json")
    content["model"]["vocab"][7][1] = score
    write(folder / "tokenizer.json", content)
    assert json.loads(_load(folder).to_str())["model"]["vocab"][7][1] == score


@pytest.mark.parametrize("base", ["bert", "bert-saved", "mistral"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("extra_special_tokens", ["<new>"]),
        ("extra_special_tokens", {"image_token": "<new>"}),
        ("additional_special_tokens", [NEW]),
        ("image_token", "<new>"),
        ("mask_token", NEW | {"__type": "AddedToken"}),
    ],
)
def test_special_tokens_of_tokenizer_config_are_added(
    tmp_path: Path, base: str, key: str, value: object
) -> None:
    num_tokens = _load(write_base(tmp_path / "plain", base)).get_vocab_size()
    folder = _edited(tmp_path / "new", base, "tokenizer_config.json", key, value)
    assert num_tokens in _load(folder).encode("hello<new>world").ids


def _with_tokens(
    tmp_path: Path, config: dict[str, Any], tokens: dict[str, Any]
) -> tuple[Path, int]:
    """Write a folder with tokens in two files; return it, and how many tokens it has without."""
    number = _load(write_base(tmp_path / "plain", "bert")).get_vocab_size()
    folder = write_base(tmp_path / "new", "bert")
    path = folder / "tokenizer_config.json"
    write(path, read(path) | config)
    write(folder / "special_tokens_map.json", tokens)
    return folder, number


@pytest.mark.parametrize(
    ("config", "tokens", "added"),
    [
        ({"extra_special_tokens": ["<a>"]}, {"extra_special_tokens": ["<b>"]}, ["<a>", "<b>"]),
        ({"extra_special_tokens": ["<a>"]}, {"extra_special_tokens": {"b": "<b>"}}, ["<b>"]),
        ({"extra_special_tokens": {"a": "<a>"}}, {"extra_special_tokens": ["<b>"]}, ["<a>", "<b>"]),
        ({"extra_special_tokens": ["<a>"]}, {"additional_special_tokens": ["<b>"]}, ["<a>"]),
        ({"extra_special_tokens": None}, {"additional_special_tokens": ["<b>"]}, []),
        ({"additional_special_tokens": ["<a>"]}, {"extra_special_tokens": ["<b>"]}, ["<a>", "<b>"]),
        ({"additional_special_tokens": ["<a>"]}, {"additional_special_tokens": ["<b>"]}, ["<a>"]),
        ({}, {"additional_special_tokens": ["<b>"]}, ["<b>"]),
        ({"a_token": "<a>"}, {"a_token": "<b>"}, ["<a>"]),
        ({"a_token": {"content": "<a>"}}, {}, []),
        ({"a_token": {"content": "<a>"}}, {"a_token": {"content": "<b>"}}, ["<b>"]),
    ],
)
def test_which_tokens_of_two_files_are_added(
    tmp_path: Path, config: dict[str, Any], tokens: dict[str, Any], added: list[str]
) -> None:
    # As transformers 5.5.4, which calls the lists "extra", and 4 "additional".
    folder, number = _with_tokens(tmp_path, config, tokens)
    found = _load(folder).get_added_tokens_decoder()
    assert [found[place].content for place in sorted(found) if place >= number] == added


@pytest.mark.parametrize(
    ("config", "tokens", "listed", "is_special"),
    [
        ({"additional_special_tokens": ["<a>"]}, {}, ["<a>"], True),
        ({}, {"extra_special_tokens": [{"content": "<a>"}]}, [], True),
        ({}, {"additional_special_tokens": ["<a>"]}, ["<a>"], False),
        ({"extra_special_tokens": {"<a>": "[MASK]"}}, {}, ["<a>"], False),
    ],
)
def test_a_token_that_a_list_names_is_special(
    tmp_path: Path,
    config: dict[str, Any],
    tokens: dict[str, Any],
    listed: list[str],
    is_special: bool,
) -> None:
    folder, number = _with_tokens(tmp_path, config, tokens)
    write(folder / "added_tokens.json", dict.fromkeys(listed, number))
    assert _load(folder).get_added_tokens_decoder()[number].special == is_special


@pytest.mark.parametrize(("base", "is_kept"), [("bert-saved", True), ("qwen2", False)])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("mask_token", "<new>"), ("extra_special_tokens", ["<new>"])),
        ("additional_special_tokens", ["<new>"]),
    ],
)
def test_a_listed_token_keeps_its_flags_unless_its_class_adds_it_anew(
    tmp_path: Path, base: str, is_kept: bool, key: str, value: object
) -> None:
    number = str(_load(write_base(tmp_path / "plain", base)).get_vocab_size())
    folder = write_base(tmp_path / "new", base)
    config = read(folder / "tokenizer_config.json")
    config |= {key: value, "added_tokens_decoder": config["added_tokens_decoder"] | {number: NEW}}
    write(folder / "tokenizer_config.json", config)
    assert _load(folder).get_added_tokens_decoder()[int(number)].lstrip == is_kept


@pytest.mark.parametrize(("key", "takes_spaces"), [("mask_token", True), ("pad_token", False)])
def test_mpnet_lets_its_mask_take_the_spaces_before_it(
    tmp_path: Path, key: str, takes_spaces: bool
) -> None:
    _edited(tmp_path, "mpnet", "tokenizer_config.json", key, "<new>")
    tokens = {each.content: each for each in _load(tmp_path).get_added_tokens_decoder().values()}
    assert tokens["<new>"].lstrip == takes_spaces


def test_a_token_that_a_key_names_is_special(tmp_path: Path) -> None:
    folder = write_base(tmp_path, "bert-saved")
    config = read(folder / "tokenizer_config.json")
    for token in config["added_tokens_decoder"].values():
        token["special"] = False
    config |= {"split_special_tokens": True, "mask_token": None}
    write(folder / "tokenizer_config.json", config)
    tokens = _load(folder).encode("[SEP] [MASK]", add_special_tokens=False).tokens
    assert "[SEP]" not in tokens
    assert "[MASK]" in tokens


def _name_in_config_json(folder: Path, base: str, kind: str, **flags: object) -> Path:
    write_base(folder, base)
    config = read(folder / "tokenizer_config.json") | flags
    del config["tokenizer_class"]
    write(folder / "tokenizer_config.json", config)
    write(folder / "config.json", read(folder / "config.json") | {"tokenizer_class": kind})
    return folder


def test_a_class_may_be_named_in_config_json_alone(tmp_path: Path) -> None:
    plain = _name_in_config_json(tmp_path / "bert", "bert", "PreTrainedTokenizerFast")
    assert _load(plain).encode("fox").tokens == ["[CLS]", "fox", "[SEP]"]
    flagged = _name_in_config_json(
        tmp_path / "llama", "llama", "LlamaTokenizer", add_eos_token=False
    )
    with pytest.raises(ModelUnsupportedError, match="add_eos_token = false is not supported"):
        _load(flagged)


@pytest.mark.parametrize("base", ["roberta", "qwen2"])
def test_the_unknown_token_is_any_where_all_bytes_are_known(tmp_path: Path, base: str) -> None:
    expected = _load(write_base(tmp_path / "plain", base))
    folder = _edited(tmp_path / "new", base, "tokenizer.json", "model.unk_token", "<unk>")
    found = _load(folder)
    assert [found.encode(text).ids for text in TEXTS] == [
        expected.encode(text).ids for text in TEXTS
    ]
    content = read(folder / "tokenizer.json")
    del content["model"]["vocab"]["\u0100"]  # of the byte 0
    write(folder / "tokenizer.json", content)
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer.json: model.unk_token = "):
        _load(folder)


def test_tokens_that_only_tokenizer_json_lists_are_refused(tmp_path: Path) -> None:
    _edited(tmp_path, "bert", "tokenizer_config.json", "added_tokens_decoder", {})
    assert _load(tmp_path)  # all of them are named
    content = read(tmp_path / "tokenizer.json")
    content["added_tokens"].append(NEW | {"id": 187, "single_word": False, "rstrip": False})
    content["added_tokens"][-1] |= {"normalized": False}
    write(tmp_path / "tokenizer.json", content)
    with pytest.raises(ModelUnsupportedError, match=r'^tokenizer.json: added_tokens has "<new>"'):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("base", "key", "value", "message"),
    [
        ("bert", "cls_token", 5, "cls_token = 5 is not supported; accepted: a string, or an obj"),
        ("bert", "extra_special_tokens", "x", 'extra_special_tokens = "x" is not supported; acc'),
        ("bert", "added_tokens_decoder", {"x": NEW}, "added_tokens_decoder: x = .*ids as keys"),
        ("bert", "added_tokens_decoder", {"1": "x"}, 'added_tokens_decoder: 1 = "x" is not sup'),
        ("bert", "extra_special_tokens", 5, "extra_special_tokens = 5 is not supported; acc"),
        ("bert", "extra_special_tokens", [None], "extra_special_tokens: 0 = null is not supp"),
        ("bert", "cls_token", None, "cls_token = null is not supported; accepted: a token of"),
        ("llama", "tokenizer_class", None, "tokenizer_class = null is not supported; accepted: P"),
        ("llama", "tokenizer_class", "T5Tokenizer", 'tokenizer_class = "T5Tokenizer" is not sup'),
        ("mistral", "fix_mistral_regex", True, "fix_mistral_regex = true is not supported"),
    ],
)
def test_what_is_no_token_or_class_is_refused(
    tmp_path: Path, base: str, key: str, value: object, message: str
) -> None:
    _edited(tmp_path, base, "tokenizer_config.json", key, value)
    with pytest.raises(ModelUnsupportedError, match=f"^tokenizer_config.json: {message}"):
        _load(tmp_path)


def test_a_token_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    write_base(tmp_path, "bert")
    write(tmp_path / "special_tokens_map.json", {"additional_special_tokens": [5]})
    told = "^special_tokens_map.json: additional_special_tokens: 0 = 5 is not supported"
    with pytest.raises(ModelUnsupportedError, match=told):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.vocab.hello", 40_000, 'the token "hello" has the id 40000; .* 190 of config.json'),
        ("model.vocab.hello", 7, "the token .* has the id 7, which another token has too"),
        ("post_processor.special_tokens", {}, 'special_tokens = {} .* ids for "[CLS]", which si'),
        ("post_processor.special_tokens.[CLS].ids", [2, 2], "special_tokens = .* an id for every"),
        ("post_processor.special_tokens.[CLS].ids", [4000], 'post_processor adds "[CLS]" with th'),
        ("post_processor.single", [], r"single = \[\] .* a template with the text once"),
        ("model.type", "Whatever", "cannot be read: "),
    ],
)
@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "BertTokenizer"])
def test_ids_without_an_embedding_and_templates_without_ids_are_refused(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    key: str,
    value: object,
    message: str,
) -> None:
    if kind == "BertTokenizer" and "ids" in key and value == [4000]:
        message = "post_processor.special_tokens.*ids.* = 4000, but BertTokenizer"
    _edited(tmp_path, "bert", "tokenizer.json", key, value)
    config = read(tmp_path / "tokenizer_config.json") | {"tokenizer_class": kind}
    write(tmp_path / "tokenizer_config.json", config)
    pattern = f"^tokenizer.json: (post_processor: )?{message.replace('[C', chr(92) + '[C')}"
    with pytest.raises(ModelUnsupportedError, match=pattern) as caught:
        _load(tmp_path)
    assert "\n" not in str(caught.value)
    assert "panicked" not in capfd.readouterr().err


def test_merges_without_the_prefix_do_not_panic(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _edited(tmp_path, "roberta", "tokenizer.json", "model.continuing_subword_prefix", "@@")
    with pytest.raises(ModelUnsupportedError, match=r'^tokenizer.json: .*prefix = "@@", but the'):
        _load(tmp_path)
    assert "panicked" not in capfd.readouterr().err

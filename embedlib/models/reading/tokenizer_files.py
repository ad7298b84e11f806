"""Loads a folder's tokenizer so that it gives the same token ids as transformers.

tokenizer.json is the tokenizer; where there is none, a class of transformers with a vocabulary. A
few keys of tokenizer_config.json change the ids, as in transformers; and a folder whose
tokenizer.json is not what transformers would build is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, normalizers

from embedlib.errors import ModelUnsupportedError
from embedlib.models.families.refused import TOKENIZERS
from embedlib.models.reading.added_tokens import AddedTokens, read_added_tokens
from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.model_file import name_in
from embedlib.models.reading.tokenizer_build import ClassTokenizer, steps_of
from embedlib.models.reading.tokenizer_classes import (
    CLASSES,
    PLAIN_NAMES,
    SUBCLASSES,
    TokenizerClass,
    class_name,
    later_class_name,
    vocabulary_class_name,
)
from embedlib.models.reading.tokenizer_ends import apply_ends
from embedlib.models.reading.tokenizer_json import PROBE, TokenizerJson, refusing
from embedlib.models.reading.vocabulary import read_vocabulary, vocabulary_of
from embedlib.models.reading.vocabulary_files import vocabulary_files


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return a model's tokenizer, without truncation or padding.

    The tokenizer also lower-cases texts if the spec requires it.

    Raises:
        ModelUnsupportedError: if there is neither tokenizer.json nor a vocabulary of the model's
            class, or a file is damaged or does not fit the model.
    """
    if files.spec.encoder.is_table:
        return _of_static_model(files)
    directory = files.transformer_dir
    config = JsonObject.load(directory / "tokenizer_config.json", files.folder)
    model_config = JsonObject.load(directory / "config.json", files.folder)
    read, tokenizer = _of_vocabulary(files, config, model_config) or _of_json(
        files, config, model_config
    )
    with refusing(read.name):
        if config.boolean("split_special_tokens", False):
            tokenizer.encode_special_tokens = True
        if files.spec.lowercase:
            _prepend_lowercase(tokenizer)
        if files.spec.late_interaction is not None:
            _keep_whole(tokenizer, files.spec.late_interaction.markers)
        read.check_ids(tokenizer, files.spec.encoder.vocab_size)
        tokenizer.encode(PROBE, PROBE)
    return tokenizer


def _of_vocabulary(
    files: ModelFiles, config: JsonObject, model_config: JsonObject
) -> tuple[TokenizerJson, Tokenizer] | None:
    """Return what a class makes of a vocabulary; None: tokenizer.json is there, or no vocabulary.

    Args:
        files: the model.
        config: tokenizer_config.json.
        model_config: config.json.
    """
    found = vocabulary_files(files.transformer_dir, files.folder)
    if not found:
        return None
    name = vocabulary_class_name(config, model_config)
    if name in TOKENIZERS:
        raise ModelUnsupportedError(
            f"{config.name}: tokenizer_class = {quote(name)} {TOKENIZERS[name]}"
        )
    if name not in CLASSES:
        return None
    row = CLASSES[name]
    paths = vocabulary_of(row, found)
    if not paths:
        return None
    tokens = _added_tokens(None, files, config, row)
    content = read_vocabulary(paths, files.folder, tokens)
    read = TokenizerJson(name_in(paths[0], files.folder), content)
    _check_side(read, config)
    with refusing(read.name):
        return read, ClassTokenizer(read, name, row, config, tokens).complete()


def _of_json(
    files: ModelFiles, config: JsonObject, model_config: JsonObject
) -> tuple[TokenizerJson, Tokenizer]:
    """Return tokenizer.json, and what its class makes of it; the arguments are those above."""
    config.check_fixed("fix_mistral_regex", (False, None))
    name = class_name(config, model_config)
    row = CLASSES.get(name)
    read = TokenizerJson.load(
        files.transformer_dir / "tokenizer.json",
        files.folder,
        exact_scores=row is not None and row.model == "Unigram",
    )
    num_tokens = read.tokenizer.get_vocab_size()
    _check_side(read, config)
    with refusing(read.name):
        if row is None:
            _check_later_class(read, files, config, model_config)
            tokenizer = read.tokenizer
            tokens = _added_tokens(read.tokenizer, files, config, row)
            # Files keep the truncation and padding that were set when they were saved:
            # all-MiniLM-L6-v2 truncates at 128.
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokens.add_to(tokenizer)
            _check_types(read, files, config)
        else:
            of_class = _of_class(read, files, config, name)
            tokenizer = of_class.build(lowercase=files.spec.lowercase)
        apply_ends(tokenizer, config, model_config, num_tokens, read.name)
    return read, tokenizer


def _check_side(read: TokenizerJson, config: JsonObject) -> None:
    """Check that a text that is too long loses its end.

    Source: `TokenizersBackend.__init__` of transformers 5.5, which takes the side of tokenizer.json
    where tokenizer_config.json names none.
    """
    config.check_fixed("truncation_side", ("right", None))
    if "truncation_side" not in config:
        read.saved_length()  # refuses the other side


def _check_types(read: TokenizerJson, files: ModelFiles, config: JsonObject) -> None:
    """Check that all tokens of a text have the type 0, as they have it here.

    transformers passes others to the model where `model_input_names` lists them, 4 by default.
    """
    names = config.values.get("model_input_names")
    is_passed = not isinstance(names, list) or "token_type_ids" in names
    types = read.tokenizer.encode(PROBE).type_ids
    if is_passed and files.spec.encoder.num_token_types > 1 and any(types):
        raise ModelUnsupportedError(
            f"{read.name}: post_processor gives the tokens of a text the types {types}; accepted: "
            "type_id 0 in single"
        )


def _of_static_model(files: ModelFiles) -> Tokenizer:
    """Return the tokenizer of a static model: tokenizer.json alone, without special tokens.

    Source: `StaticEmbedding.preprocess` of sentence-transformers 6.2, and `StaticModel.tokenize` of
    model2vec 0.10.
    """
    read = TokenizerJson.load(files.transformer_dir / "tokenizer.json", files.folder)
    with refusing(read.name):
        if files.spec.is_sparse:
            _check_table_class(read, files)
        tokenizer = read.tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.post_processor = None
        read.check_ids(tokenizer, files.spec.encoder.vocab_size, is_table=True)
        tokenizer.encode(PROBE)
    return tokenizer


def _check_table_class(read: TokenizerJson, files: ModelFiles) -> None:
    """Check that the class of a table of token weights gives the ids of tokenizer.json.

    Source: `SparseStaticEmbedding.load` of sentence-transformers 6.2, which asks AutoTokenizer.

    Raises:
        ModelUnsupportedError: it gives others, or is not known.
    """
    config = JsonObject.load(files.transformer_dir / "tokenizer_config.json", files.folder)
    _check_side(read, config)
    config.check_fixed("split_special_tokens", (False, None))
    name = (config.text("tokenizer_class") or "").removesuffix("Fast")
    name = SUBCLASSES.get(name, name)
    if name in PLAIN_NAMES:
        return
    if name not in CLASSES:
        raise config.refuse("tokenizer_class", ", ".join(["PreTrainedTokenizerFast", *CLASSES]))
    _of_class(read, files, config, name).check_same(lowercase=False)


def _check_later_class(
    read: TokenizerJson, files: ModelFiles, config: JsonObject, model_config: JsonObject
) -> None:
    """Check that the ids do not depend on the release of transformers.

    Raises:
        ModelUnsupportedError: later releases take a class that gives others than tokenizer.json.
    """
    name = later_class_name(config, model_config)
    if name is not None:
        later = _of_class(read, files, config, name, release=" 5.23")
        later.check_same(lowercase=files.spec.lowercase)


def _of_class(
    read: TokenizerJson, files: ModelFiles, config: JsonObject, name: str, release: str = ""
) -> ClassTokenizer:
    """Return what a class of transformers takes of tokenizer.json."""
    row = CLASSES[name]
    tokens = _added_tokens(read.tokenizer, files, config, row)
    return ClassTokenizer(read, name, row, config, tokens, release)


def _added_tokens(
    stored: Tokenizer | None, files: ModelFiles, config: JsonObject, row: TokenizerClass | None
) -> AddedTokens:
    """Return the special tokens of the folder, and those that its class adds to every folder.

    Args:
        stored: that of tokenizer.json; None: there is none.
        files: the model.
        config: tokenizer_config.json.
        row: of the class; None: it takes tokenizer.json as it is.
    """
    defaults = dict(row.defaults) if row else {}
    if stored is not None and stored.padding is not None:
        defaults.setdefault("pad_token", stored.padding["pad_token"])
    return read_added_tokens(
        config,
        files.transformer_dir,
        files.folder,
        {} if stored is None else stored.get_added_tokens_decoder(),
        defaults=defaults,
        wrap=row.wrap if row else lambda key, content: content,
    )


def _keep_whole(tokenizer: Tokenizer, markers: Sequence[str]) -> None:
    """Make tokens that a prompt starts with special, so that they are not divided.

    The libraries that trained the model insert such a token; sentence-transformers and embedlib
    write it in front of the text. A prompt that starts with no token of the vocabulary stays text.

    Source: `MultiVectorEncoder._register_prefix_tokens` of sentence-transformers 6.2.
    """
    for marker in markers:
        tokens = (marker, marker.split(None, 1)[0])
        known = next((token for token in tokens if tokenizer.token_to_id(token) is not None), None)
        if known is not None and tokenizer.encode(known, add_special_tokens=False).tokens != [
            known
        ]:
            tokenizer.add_special_tokens([known])


def _prepend_lowercase(tokenizer: Tokenizer) -> None:
    """Add lower-casing as the first step, unless the tokenizer already has such a step.

    Source: `Transformer.__init__` in sentence-transformers, base/modules/transformer.py.
    """
    present = tokenizer.normalizer
    if not any(step["type"] == "Lowercase" for step in steps_of(present)):
        following = [] if present is None else [present]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *following])

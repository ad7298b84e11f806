"""Builds the tokenizer of a class of transformers, and refuses a tokenizer.json that differs."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from embedlib.errors import ModelUnsupportedError
from embedlib.models.reading.added_tokens import AddedTokens
from embedlib.models.reading.json_files import JsonObject, quote
from embedlib.models.reading.tokenizer_classes import UNKNOWN, Ends, Step, TokenizerClass
from embedlib.models.reading.tokenizer_json import PROBE, TokenizerJson, state

LOWERCASE: Step = {"type": "Lowercase"}


@dataclass(frozen=True)
class ClassTokenizer:
    """A tokenizer.json, and the class of transformers that takes a part of it."""

    read: TokenizerJson
    name: str
    """Of the class."""
    row: TokenizerClass
    config: JsonObject
    """tokenizer_config.json."""
    tokens: AddedTokens
    release: str = ""
    """Of transformers, with a space before it, if not every one takes the class."""

    def build(self, *, lowercase: bool) -> Tokenizer:
        """Return the tokenizer that the class builds.

        Args:
            lowercase: sentence-transformers lower-cases texts, so tokenizer.json may say that.

        Raises:
            ModelUnsupportedError: tokenizer.json says something else, which would change ids.
        """
        self._check_model()
        present = self.read.tokenizer
        built = Tokenizer(present.model)
        built.normalizer = self._normalizer(lowercase)
        built.pre_tokenizer = self.row.pre_tokenizer(self.config)
        self._check_steps("pre_tokenizer", present.pre_tokenizer, built.pre_tokenizer)
        built.decoder = present.decoder
        built.post_processor = present.post_processor
        self._add_tokens(built)
        if self.row.ends is not None:
            self._check_ends(built, self.row.ends)
        return built

    def complete(self) -> Tokenizer:
        """Return the tokenizer that the class makes of a vocabulary alone: `read` has no steps."""
        built = self.read.tokenizer
        if not self.row.keeps_charsmap:
            built.normalizer = self.row.normalizer(self.config)
        built.pre_tokenizer = self.row.pre_tokenizer(self.config)
        self._add_tokens(built)
        if self.row.ends is not None:
            built.post_processor = self._ends(built, self.row.ends)
        return built

    def check_same(self, *, lowercase: bool) -> None:
        """Check that the class gives the ids of tokenizer.json as it is.

        Args:
            lowercase: as for `build`.

        Raises:
            ModelUnsupportedError: tokenizer.json or a flag of tokenizer_config.json changes ids.
        """
        built = self.build(lowercase=lowercase)
        present = self.read.tokenizer
        parts = {
            "normalizer": (present.normalizer, built.normalizer),
            "pre_tokenizer": (present.pre_tokenizer, built.pre_tokenizer),
        }
        for key, (of_file, of_class) in parts.items():
            if self._flags(of_file) != self._flags(of_class):
                raise self._refuse(key, state(of_file), state(of_class))

    def _flags(self, part: Any) -> list[list[tuple[str, object]]]:
        """Return of each step the keys that tokenizer_config.json decides and that change ids."""
        keys = sorted(self.row.flags - {"trim_offsets"})
        return [
            [
                # Source: `BertNormalizer` of tokenizers: null means as lowercase.
                (
                    key,
                    step["lowercase"] if (key, step[key]) == ("strip_accents", None) else step[key],
                )
                for key in keys
                if key in step
            ]
            for step in steps_of(part)
            if step not in (*self.row.optional, LOWERCASE)
        ]

    def _check_model(self) -> None:
        """Check the kind of the model, and its options."""
        model = self.read.tokenizer.model
        found = type(model).__name__
        if found != self.row.model:
            raise self._refuse("model.type", found, self.row.model)
        for key, expected in self.row.options.items():
            if expected is UNKNOWN:
                expected = self.tokens.content("unk_token")
            value = self.read.option(key)
            if (value or None) == (expected or None):  # "", false and 0 are no option
                continue
            if key != "unk_token" or not self._knows_all_bytes():
                raise self._refuse(f"model.{key}", value, expected)

    def _knows_all_bytes(self) -> bool:
        """Return whether the model has a token for every byte, and so never an unknown one."""
        if self.row.options.get("byte_fallback"):
            pieces: Iterable[str] = (f"<0x{byte:02X}>" for byte in range(256))
        else:
            pieces = pre_tokenizers.ByteLevel.alphabet()
        return all(self.read.tokenizer.model.token_to_id(piece) is not None for piece in pieces)

    def _normalizer(self, lowercase: bool) -> normalizers.Normalizer | None:
        present = self.read.tokenizer.normalizer
        built = self.row.normalizer(self.config)
        if self.row.keeps_charsmap:
            built = _charsmap(steps_of(present))
        lowercase = lowercase or bool((state(built) or {}).get("lowercase"))
        self._check_steps("normalizer", present, built, [LOWERCASE] if lowercase else [])
        return built

    def _check_steps(
        self, key: str, present: Any, built: Any, optional: Iterable[Step] = ()
    ) -> None:
        """Check that two normalizers or pre-tokenizers give the same, whatever the text."""
        left_out = (*self.row.optional, *optional)
        if self._steps(present, left_out) != self._steps(built, left_out):
            raise self._refuse(key, state(present), state(built))

    def _steps(self, part: Any, left_out: Iterable[Step]) -> list[Step]:
        """Return the steps that must agree, without the keys that tokenizer_config.json decides."""
        return [
            {key: value for key, value in step.items() if key not in self.row.flags}
            for step in steps_of(part)
            if step not in left_out
        ]

    def _add_tokens(self, built: Tokenizer) -> None:
        self.tokens.add_to(built)
        if self.row.adds_anew:
            self.tokens.add_anew(built)
        present = self.read.tokenizer.get_added_tokens_decoder().values()
        kept = {token.content for token in built.get_added_tokens_decoder().values()}
        for token in present:
            if token.content not in kept:
                raise ModelUnsupportedError(
                    f"{self.read.name}: added_tokens has {quote(token.content)}, which "
                    f"added_tokens_decoder of {self.config.name} has not; {self._advice()}"
                )

    def _check_ends(self, built: Tokenizer, ends: Ends) -> None:
        """Compare the post-processors on a text and on a pair; take the types of the class."""
        expected = self._ends(built, ends)
        text = built.encode(PROBE, add_special_tokens=False)
        for pair in ((text,), (text, text)):
            of_class = expected.process(*pair)
            of_file = built.post_processor.process(*pair) if built.post_processor else None
            if of_file is None or of_file.ids != of_class.ids:
                raise self._refuse("post_processor", state(built.post_processor), state(expected))
            if of_file.type_ids != of_class.type_ids:
                built.post_processor = expected
                return

    def _ends(self, built: Tokenizer, ends: Ends) -> processors.PostProcessor:
        ids: dict[str, int] = {}
        for key in (ends.first, ends.last):
            token = self.tokens.content(key)
            if token is None or (number := built.token_to_id(token)) is None:
                raise self.config.refuse(key, "a token of tokenizer.json")
            ids[token] = number
        first, last = (str(self.tokens.content(key)) for key in (ends.first, ends.last))
        text = [first, "$A", last]
        kind = ends.second_type
        second = [f"$B:{kind}", f"{last}:{kind}"]
        return processors.TemplateProcessing(
            single=text,
            pair=[*text, *[last] * (ends.num_between - 1), *second],
            special_tokens=list(ids.items()),
        )

    def _refuse(self, key: str, found: object, expected: object) -> ModelUnsupportedError:
        key, found, expected = _narrowed(key, found, expected)
        return ModelUnsupportedError(
            f"{self.read.name}: {key} = {quote(found)}, but {self.name}, which transformers"
            f"{self.release} takes for this folder, has {quote(expected)}; {self._advice()}"
        )

    def _advice(self) -> str:
        return (
            'to use tokenizer.json as it is, set tokenizer_class to "PreTrainedTokenizerFast" in '
            f"{self.config.name}; for that class, save the folder again with transformers 5"
        )


def _narrowed(key: str, found: object, expected: object) -> tuple[str, object, object]:
    """Return the place of the only difference of two values, for values too long to be printed."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        keys: list[Any] = [name for name in found if found[name] != expected[name]]
        path = f"{key}.{{}}"
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        keys = [place for place in range(len(found)) if found[place] != expected[place]]
        path = f"{key}[{{}}]"
    else:
        return key, found, expected
    if len(keys) != 1:
        return key, found, expected
    return _narrowed(path.format(keys[0]), found[keys[0]], expected[keys[0]])


def steps_of(part: Any) -> list[Step]:
    """Return the steps of a normalizer or pre-tokenizer, as JSON.

    Not every release of the library can iterate over a sequence.
    """
    content = state(part)
    if content is None:
        return []
    if content["type"] != "Sequence":
        return [content]
    found: list[Step] = content.get("normalizers", content.get("pretokenizers"))
    return found


def _charsmap(steps: list[Step]) -> normalizers.Normalizer | None:
    """Return the normalizer of SentencePiece, if it is among the steps."""
    for step in steps:
        if step["type"] == "Precompiled":
            return normalizers.Precompiled(base64.b64decode(step["precompiled_charsmap"]))
    return None

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.refusals import describe_truncated
from embedlib.batching.tokenizing.tokenizer import Side, Tokenizer
from embedlib.batching.tokenizing.tokenizer_thread import TokenizerThread
from embedlib.config import Config, OnTruncate
from embedlib.engines.base import Lane
from embedlib.errors import (
    ClosedError,
    ConfigError,
    EmbedlibError,
    EngineOutOfMemoryError,
    InputError,
    PassingBuildError,
    SequenceTooLongError,
)
from embedlib.models.known_models import known_model
from embedlib.models.prompts import Prompt, Prompts
from embedlib.models.reading.files import read_model_files
from embedlib.models.reading.tokenizer_files import load_tokenizer
from embedlib.testing import TINY_VARIANTS, byte_tokenizer, fake_spec
from tests.ending import end
from tests.panics import PanicException, PanickingTokenizer
from tests.waiting import WAIT_SECONDS

BARE = Prompt()


def make_tokenizer(
    tokenizer: tokenizers.Tokenizer | None = None,
    max_seq_tokens: int = 8,
    on_truncate: OnTruncate = "ignore",
    excludes_prompt: bool = True,
    num_positions: int | None = None,
) -> Tokenizer:
    return Tokenizer(
        tokenizer or byte_tokenizer(),
        max_seq_tokens,
        on_truncate=on_truncate,
        excludes_prompt=excludes_prompt,
        meter=Meter(lambda: 0.0),
        num_positions=num_positions,
    )


def make_job(num_texts: int, first_row: int = 0) -> Job:
    return Job(num_texts, 1, Lane.BULK, first_row)


def bracketed(num_leading: int, num_trailing: int) -> tokenizers.Tokenizer:
    """Bytes with special tokens around them: ids 0, 1, ... before and 10, 11, ... behind."""
    tokenizer = byte_tokenizer()
    before = [(f"<b{index}>", index) for index in range(num_leading)]
    behind = [(f"<e{index}>", 10 + index) for index in range(num_trailing)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[name for name, _ in before] + ["$A"] + [name for name, _ in behind],
        special_tokens=before + behind,
    )
    return tokenizer


@pytest.mark.parametrize("variant", TINY_VARIANTS)
def test_ids_cut_and_prompts_are_those_of_transformers(
    variant: str, tiny_folder: Callable[[str], Path], golden: Callable[[str], Any]
) -> None:
    files = read_model_files(tiny_folder(variant))
    tokenizer = make_tokenizer(
        load_tokenizer(files),
        files.spec.max_seq_tokens,
        excludes_prompt=not files.spec.pooling.include_prompt,
    )
    stored = golden(variant)
    for case in stored.cases:
        name = case.prompt_name or files.spec.default_prompt_name
        prompt = Prompt(prefix=files.spec.prompts[name] if name else "")
        expected = list(case.ids)
        # All in one call, and each by itself: the two ways into the Rust tokenizer.
        together = tokenizer(make_job(len(stored.texts)), 0, stored.texts, prompt)
        alone = [tokenizer(make_job(1), 0, [text], prompt)[0] for text in stored.texts]
        assert [sequence.token_ids for sequence in together] == expected
        assert [sequence.token_ids for sequence in alone] == expected
        assert max(map(len, expected)) == files.spec.max_seq_tokens, "no text is long enough"
        if not files.spec.pooling.include_prompt:
            counts = {sequence.num_prompt_tokens for sequence in together}
            assert counts == {case.num_prompt_tokens}


def test_a_prompt_is_counted_only_where_pooling_leaves_it_out() -> None:
    for excludes_prompt, num_prompt_tokens in ((True, 4), (False, 0)):
        tokenizer = make_tokenizer(bracketed(1, 2), excludes_prompt=excludes_prompt)
        [sequence] = tokenizer(make_job(1), 0, ["x"], Prompt(prefix="abc"))
        assert sequence.num_prompt_tokens == num_prompt_tokens
        assert sequence.token_ids == [0, *b"abcx", 10, 11]


def test_a_text_without_a_token_behind_an_excluded_prompt_is_refused() -> None:
    # Without a token at the end there would be nothing to pool: the vector would be all zeros.
    tokenizer = make_tokenizer(bracketed(1, 0))
    with pytest.raises(InputError, match=r"text 7 .* no tokens behind the prompt"):
        tokenizer(make_job(1, 7), 0, [""], Prompt(prefix="abc"))
    make_tokenizer(bracketed(1, 0), excludes_prompt=False)(
        make_job(1, 7), 0, [""], Prompt(prefix="abc")
    )


def joining_tokenizer() -> tokenizers.Tokenizer:
    """As byte-level tokenizers: a space is a token alone, and part of the word behind it."""
    vocab = ["[UNK]", "q", "Ġ", "h", "Ġh"]
    model = models.BPE({token: id_ for id_, token in enumerate(vocab)}, [("Ġ", "h")])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


@pytest.mark.parametrize(("text", "is_joined"), [("h", True), ("", False)])
def test_a_text_that_is_joined_with_an_excluded_prompt_is_told_so(
    text: str, is_joined: bool
) -> None:
    tokenizer = make_tokenizer(joining_tokenizer())
    with pytest.raises(InputError, match=r"^text 0 has no tokens behind the prompt") as caught:
        tokenizer(make_job(1), 0, [text], Prompt(prefix="q "))
    assert ("joins the end of the prompt" in str(caught.value)) is is_joined
    tokenizer(make_job(1), 0, ["h h"], Prompt(prefix="q "))


@given(
    num_leading=st.integers(0, 3),
    num_trailing=st.integers(0, 3),
    room=st.integers(3, 9),
    text=st.text(st.characters(codec="ascii"), min_size=1, max_size=20),
    side=st.sampled_from(["left", "right"]),
)
def test_the_cut_is_that_of_the_library_between_the_special_tokens(
    num_leading: int, num_trailing: int, room: int, text: str, side: Side
) -> None:
    limit = num_leading + room + num_trailing
    tokenizer = make_tokenizer(
        bracketed(num_leading, num_trailing), limit, excludes_prompt=False
    ).with_truncation("ignore", side)
    assert tokenizer.num_special_tokens == num_leading + num_trailing
    [sequence] = tokenizer(make_job(1), 0, [text], Prompt(prefix="PQ"))
    reference = bracketed(num_leading, num_trailing)
    reference.enable_truncation(limit, direction=side)
    assert sequence.token_ids == reference.encode(f"PQ{text}").ids


@pytest.mark.parametrize(
    ("prompt", "excludes_prompt"),
    [(Prompt(prefix="P"), True), (Prompt(suffix="S"), False), (Prompt(examples="E"), False)],
)
def test_a_prompt_that_must_be_found_is_not_cut_on_the_left(
    prompt: Prompt, excludes_prompt: bool
) -> None:
    tokenizer = make_tokenizer(excludes_prompt=excludes_prompt).with_truncation("ignore", "left")
    with pytest.raises(ConfigError, match="would cut the prompt"):
        tokenizer(make_job(1), 0, ["x"], prompt)


# Windows.


@given(
    num_leading=st.integers(0, 3),
    num_trailing=st.integers(0, 3),
    prefix=st.text("ab", max_size=4),
    room=st.integers(3, 9),
    text=st.text(st.characters(codec="ascii"), min_size=1, max_size=40),
    excludes_prompt=st.booleans(),
)
def test_windows_have_every_token_once(
    num_leading: int,
    num_trailing: int,
    prefix: str,
    room: int,
    text: str,
    excludes_prompt: bool,
) -> None:
    head, tail = [*range(num_leading), *prefix.encode()], list(range(10, 10 + num_trailing))
    limit = len(head) + room + len(tail)
    rust = bracketed(num_leading, num_trailing)
    tokenizer = make_tokenizer(rust, limit, "chunk", excludes_prompt)
    job = make_job(3)
    texts = ["x", text, "y"]
    before, *windows, behind = tokenizer(job, 0, texts, Prompt(prefix=prefix))
    assert (before.row, behind.row, before.share, behind.share) == (0, 2, 1, 1)
    assert {window.row for window in windows} == {1}
    assert len(windows) == -(-len(text) // room)
    pieces = []
    for window in windows:
        ids = window.token_ids
        assert len(ids) <= limit
        assert ids[: len(head)] == head
        assert ids[len(ids) - len(tail) :] == tail
        assert window.num_prompt_tokens == (len(head) if excludes_prompt and prefix else 0)
        pieces.append(ids[len(head) : len(ids) - len(tail)])
        assert window.share == pytest.approx(len(pieces[-1]) / len(text))
    assert bytes(token_id for piece in pieces for token_id in piece).decode() == text
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    assert sum(window.share for window in windows) == pytest.approx(1)
    assert job.truncated == []
    for sequence in (before, *windows, behind):  # the job knows how many to wait for
        assert not job.is_over
        job.resolve([sequence], np.ones((1, 1), np.float32) * sequence.share)
    np.testing.assert_allclose(job.future.result(0), 1, rtol=1e-6)


@pytest.mark.parametrize("variant", ["roberta", "xlm-roberta", "gemma3_text"])
def test_a_prompt_that_grows_into_the_text(
    variant: str, tiny_folder: Callable[[str], Path]
) -> None:
    rust = load_tokenizer(read_model_files(tiny_folder(variant)))
    prompt = Prompt(prefix="query: ")  # its space is part of the first word, if it has one
    text = "river city " * 20
    whole = rust.encode(prompt.prefix + text).ids
    windows = make_tokenizer(rust, 20, "chunk")(make_job(1), 0, [text], prompt)
    num_head = windows[0].num_prompt_tokens
    num_tail = sum(1 for item in rust.encode(text).special_tokens_mask[-3:] if item)
    pieces = [window.token_ids[num_head : window.num_tokens - num_tail] for window in windows]
    assert whole[num_head : len(whole) - num_tail] == [i for piece in pieces for i in piece]
    assert {tuple(window.token_ids[:num_head]) for window in windows} == {tuple(whole[:num_head])}
    # The first token that is not in every window is the one with the text's first letter.
    start, end = rust.encode(prompt.prefix + text).offsets[num_head]
    assert start <= len(prompt.prefix) < end


@pytest.mark.parametrize("on_truncate", ["chunk", "warn", "ignore", "error"])
@pytest.mark.parametrize("excludes_prompt", [False, True])
def test_a_prompt_that_leaves_no_room(on_truncate: OnTruncate, excludes_prompt: bool) -> None:
    # Cut behind the prompt, all texts would have the same vector.
    tokenizer = make_tokenizer(bracketed(1, 1), 5, on_truncate, excludes_prompt)
    message = "the prompt has 4 tokens, which leaves no room for a text: max_seq_length is 5"
    with pytest.raises(ConfigError, match=message):
        tokenizer(make_job(1), 0, ["xy"], Prompt(prefix="abc"))
    [sequence] = tokenizer(make_job(1), 0, ["x"], Prompt(prefix="ab"))
    assert sequence.token_ids == [0, *b"abx", 10]


def test_a_prompt_may_be_cut_on_the_left() -> None:
    tokenizer = make_tokenizer(bracketed(1, 1), 5, excludes_prompt=False)
    left = tokenizer.with_truncation("ignore", "left")
    [sequence] = left(make_job(1), 0, ["xyz"], Prompt(prefix="abc"))
    assert sequence.token_ids == [0, *b"xyz", 10]


def test_examples_and_a_prefix_that_leave_no_room() -> None:
    prompt = Prompt(prefix="fox " * 30, suffix="<response>", examples="dog")
    with pytest.raises(ConfigError, match=r"^the prompt has \d+ tokens, which leaves no room"):
        framed_tokenizer(20)(make_job(1), 0, ["a"], prompt)


def test_a_prompt_on_both_sides_has_no_windows() -> None:
    tokenizer = make_tokenizer(max_seq_tokens=8, on_truncate="chunk")
    prompt = Prompt(prefix="ab", suffix="c")
    [sequence] = tokenizer(make_job(1), 0, ["xyzuv"], prompt)
    assert sequence.token_ids == [*b"abxyzuvc"]
    with pytest.raises(SequenceTooLongError, match=r"row 0: 9 tokens.*they cannot be divided"):
        tokenizer(make_job(1), 0, ["xyzuvw"], prompt)


def test_offsets_are_those_of_the_sequence() -> None:
    tokenizer = make_tokenizer(bracketed(1, 2), 9, "ignore")
    prompt = Prompt(prefix="ab")
    assert tokenizer.offsets("x€", prompt) == [
        *[(0, 0)] * 3, (0, 1), (1, 2), (1, 2), (1, 2), (0, 0), (0, 0)
    ]  # fmt: skip
    for text in ("x€y", "xyz", "x" * 30):
        [sequence] = tokenizer(make_job(1), 0, [text], prompt)
        assert len(tokenizer.offsets(text, prompt)) == sequence.num_tokens
    with pytest.raises(ConfigError, match="chunks need a text with nothing behind it"):
        tokenizer.offsets("x", Prompt(prefix="a", suffix="b"))
    with pytest.raises(InputError, match="text 0 is 3"):
        tokenizer.offsets(3, prompt)  # type: ignore[arg-type]


# Few-shot.

FEW_SHOT = json.loads((Path(__file__).parents[1] / "goldens/few_shot.json").read_text("utf-8"))


@pytest.mark.parametrize("case", FEW_SHOT["cases"])
def test_few_shot_ids_are_those_of_flagembedding(case: dict[str, Any]) -> None:
    rust = tokenizers.Tokenizer.from_str(FEW_SHOT["tokenizers"][str(case["tokenizer"])])
    tokenizer = make_tokenizer(rust, case["max_length"], num_positions=4096)
    config = Config(examples=case["examples"])
    prompts = Prompts(fake_spec(), config, known_model("BAAI/bge-en-icl"))
    texts = FEW_SHOT["queries"]
    for role, key in (("query", "query_ids"), ("document", "passage_ids")):
        task = FEW_SHOT["task"] if role == "query" else None
        prompt = prompts.resolve(role=role, task=task)  # type: ignore[arg-type]
        together = tokenizer(make_job(len(texts)), 0, texts, prompt)
        alone = [tokenizer(make_job(1), 0, [text], prompt)[0] for text in texts]
        assert [sequence.token_ids for sequence in together] == case[key]
        assert [sequence.token_ids for sequence in alone] == case[key]


def framed_tokenizer(max_seq_tokens: int, num_positions: int | None = None) -> Tokenizer:
    rust = tokenizers.Tokenizer.from_str(FEW_SHOT["tokenizers"]["3"])
    return make_tokenizer(rust, max_seq_tokens, num_positions=num_positions)


@settings(deadline=None, max_examples=60)
@given(
    text=st.text(max_size=60)
    | st.lists(st.sampled_from(["<query>", "fox ", "é", "\n"])).map("".join),
    max_seq_tokens=st.integers(24, 60),
    is_short=st.booleans(),
)
def test_the_suffix_and_the_examples_survive_any_text(
    text: str, max_seq_tokens: int, is_short: bool
) -> None:
    prompt = Prompt(prefix="<instruct>a\n<query>", suffix="\n<response>", examples="fox dog\n\n")
    # Where the engine has no more positions than the limit, the examples take the text's room.
    tokenizer = framed_tokenizer(max_seq_tokens, None if is_short else 4096)
    [sequence] = tokenizer(make_job(1), 0, [text], prompt)
    rust = tokenizer._tokenizer
    examples = rust.encode(prompt.examples, add_special_tokens=False).ids
    suffix = rust.encode(prompt.suffix, add_special_tokens=False).ids
    assert sequence.token_ids[: 1 + len(examples)] == [1, *examples]
    assert sequence.token_ids[-2:] == [suffix[-1], 2]
    longest = max_seq_tokens if is_short else max_seq_tokens + len(examples) + len(suffix) + 16
    assert len(sequence.token_ids) <= longest


def test_a_text_that_grows_in_the_frame_is_cut_before_the_suffix() -> None:
    prompt = Prompt(prefix="<instruct>a\n<query>", suffix="\n<response>", examples="fox dog\n\n")
    tokenizer = framed_tokenizer(61, 4096)
    examples, suffix = (
        tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
        for text in (prompt.examples, prompt.suffix)
    )
    [sequence] = tokenizer(make_job(1), 0, ["<query> " * 60], prompt)  # gains a space for each
    assert sequence.num_tokens == (len(examples) + len(suffix) + 61 + 8) // 8 * 8 + 8
    assert sequence.token_ids[-len(suffix) - 1 :] == [*suffix, 2]


@pytest.mark.parametrize("examples", ["", "fox dog\n\n"])
@pytest.mark.parametrize("num_positions", [None, 4096])
def test_a_text_that_fills_the_room_is_not_cut(examples: str, num_positions: int | None) -> None:
    prompt = Prompt(prefix="<instruct>a\n<query>", suffix="\n<response>", examples=examples)
    tokenizer = framed_tokenizer(40, num_positions)
    room = tokenizer.count_room(prompt)
    assert room < 40
    for num_tokens, num_cut in ((room, 0), (room + 1, 1)):
        job = make_job(1)
        text = "<query>" * num_tokens
        tokenizer(job, 0, [text], prompt)
        assert len(job.truncated) == num_cut, num_tokens
    # Reported so that it compares with the limit, whatever takes of the text's room.
    assert job.truncated == [(0, 41)]


def test_examples_that_leave_no_room() -> None:
    prompt = Prompt(prefix="a", suffix="\n<response>", examples="fox " * 30)
    with pytest.raises(ConfigError, match=r"^the examples have \d+ tokens, which leaves no room"):
        framed_tokenizer(20)(make_job(1), 0, ["a"], prompt)


def test_a_bad_query_is_named_between_examples() -> None:
    prompt = Prompt(prefix="a", suffix="b", examples="c")
    with pytest.raises(InputError, match=r"^text 1 is None"):
        framed_tokenizer(40)(make_job(2), 0, ["a", None], prompt)  # type: ignore[list-item]


def test_room_beside_a_prefix() -> None:
    tokenizer = make_tokenizer(bracketed(1, 2), 20)
    assert tokenizer.count_room(Prompt()) == 17
    assert tokenizer.count_room(Prompt(prefix="abc")) == 14


def test_rows_and_lengths_of_what_was_cut() -> None:
    job = make_job(100, first_row=1000)
    tokenizer = make_tokenizer(max_seq_tokens=3)
    sequences = tokenizer(job, 50, ["abc", "abcd", "a", "abcde"], BARE)
    assert [sequence.row for sequence in sequences] == [50, 51, 52, 53]
    assert job.truncated == [(1051, 4), (1053, 5)]
    assert tokenizer._meter.read().num_truncated == 2


def test_on_truncate_error_names_rows_and_limit() -> None:
    tokenizer = make_tokenizer(max_seq_tokens=3, on_truncate="error")
    with pytest.raises(SequenceTooLongError, match="2 texts are too long") as caught:
        tokenizer(make_job(9, first_row=10), 5, ["abc", "abcd", "a", "abcde"], BARE)
    assert caught.value.rows == (16, 18)
    assert caught.value.max_seq_tokens == 3
    assert "row 16: 4 tokens, row 18: 5 tokens" in str(caught.value)
    assert "the limit is 3" in str(caught.value)


def test_the_first_ten_rows_are_named_and_the_rest_is_counted() -> None:
    rows = [(row, 9) for row in range(30)]
    told = describe_truncated(rows[::-1], 30)
    assert told.startswith("30 texts are too long (row 0: 9 tokens, row 1: 9 tokens, ")
    assert told.endswith("row 9: 9 tokens and 20 more)")
    assert describe_truncated([(3, 9)], 1) == "1 text is too long (row 3: 9 tokens)"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("a\ud800b", r"text 12 has the lone surrogate '\\ud800' at character 1"),
        (None, r"text 12 is None, a NoneType; it must be a str"),
        (7, r"text 12 is 7, an int; it must be a str"),
        (b"bytes", r"text 12 is b'bytes', a bytes; it must be a str"),
        # The Rust tokenizer would take these as a pair of texts and join them.
        (("a", "b"), r"text 12 is \('a', 'b'\), a tuple; it must be a str"),
        (["a", "b"], r"text 12 is \['a', 'b'\], a list; it must be a str"),
    ],
)
@pytest.mark.parametrize("prompt", ["", "prompt "])
@pytest.mark.parametrize("num_before", [0, 2])
def test_a_bad_text_is_named(bad: Any, message: str, prompt: str, num_before: int) -> None:
    job = make_job(3, first_row=12 - num_before)
    with pytest.raises(InputError, match=f"^{message}"):
        make_tokenizer()(job, 0, [*["ok"] * num_before, bad], Prompt(prefix=prompt))


def test_a_bad_prompt_is_named() -> None:
    message = r"^the prompt has the lone surrogate '\\ud800' at character 0"
    with pytest.raises(InputError, match=message):
        make_tokenizer()(make_job(1), 0, ["ok"], Prompt(prefix="\ud800"))


def test_a_text_without_tokens_is_named() -> None:
    with pytest.raises(InputError, match=r"^text 12 has no tokens: ''; leave it out"):
        make_tokenizer()(make_job(2, first_row=11), 0, ["ok", ""], BARE)


def test_a_long_text_is_not_repeated_in_full_in_the_message() -> None:
    with pytest.raises(InputError) as caught:
        make_tokenizer()(make_job(1), 0, [[0] * 10_000], BARE)  # type: ignore[list-item]
    assert len(str(caught.value)) < 200


def test_what_the_tokenizer_itself_refuses_names_the_texts() -> None:
    # No unknown token: a word that is not in the vocabulary is an error.
    strict = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    with pytest.raises(InputError, match=r"^texts 4 to 5 failed to tokenize: "):
        make_tokenizer(strict)(make_job(9), 4, ["a", "b"], BARE)


NO_THREADS = (
    "The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(Os { "
    'code: 11, kind: WouldBlock, message: "Resource temporarily unavailable" }) }'
)
"""What the library says where the system lets it start no thread."""


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (PanicException(NO_THREADS), PassingBuildError, "ulimit -u.* TOKENIZERS_PARALLELISM=false"),
        (MemoryError(), EngineOutOfMemoryError, "^the tokenizer is out of memory; pass fewer"),
    ],
)
def test_what_the_tokenizer_lacks_is_no_fault_of_the_texts(
    raised: BaseException,
    expected: type[EmbedlibError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a load would count all its rows as bad, and go on without them."""
    tokenizer = make_tokenizer()
    monkeypatch.setattr(tokenizer._encode, "_tokenizer", PanickingTokenizer(lambda _: raised))
    with pytest.raises(expected, match=message):
        tokenizer(make_job(9), 4, ["a", "b"], BARE)


def test_a_panic_of_the_tokenizer_names_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    monkeypatch.setattr(tokenizer._encode, "_tokenizer", PanickingTokenizer())
    with pytest.raises(InputError, match=r"^texts 4 to 4 failed to tokenize: no entry found for"):
        tokenizer(make_job(9), 4, ["a"], BARE)
    monkeypatch.setattr(tokenizer._encode, "_tokenizer", PanickingTokenizer(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tokenizer(make_job(9), 4, ["a"], BARE)


def test_many_threads_may_tokenize_at_once() -> None:
    tokenizer = make_tokenizer(max_seq_tokens=100)
    wrong: list[str] = []

    def work(name: str) -> None:
        for count in range(1, 30):
            texts = [name * count, name]
            ids = [item.token_ids for item in tokenizer(make_job(2), 0, texts, BARE)]
            if ids != [list(text.encode()) for text in texts]:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


tokenize = partial(make_tokenizer(), prompt=BARE)


class Outlet:
    """Where a TokenizerThread delivers: a gate, and a list of what came through."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.rows: list[int] = []

    def __call__(self, sequences: list[TokenizedText]) -> None:
        self.arrived.set()
        assert self.gate.wait(WAIT_SECONDS)
        self.rows += [sequence.row for sequence in sequences]
        for sequence in sequences:
            sequence.job.fail(ValueError("through"))


def test_the_queue_is_bounded_and_goes_on_when_there_is_room() -> None:
    outlet = Outlet()
    thread = TokenizerThread(outlet, max_queued_texts=2)
    jobs = [make_job(1) for _ in range(4)]
    thread.put(jobs[0], 0, ["a"], tokenize)
    assert outlet.arrived.wait(WAIT_SECONDS)  # out of the queue, held in the outlet
    thread.put(jobs[1], 1, ["a"], tokenize)
    thread.put(jobs[2], 2, ["a"], tokenize)
    was_put = threading.Event()

    def put() -> None:
        thread.put(jobs[3], 3, ["a"], tokenize)
        was_put.set()

    producer = threading.Thread(target=put)
    producer.start()
    # The queue holds two and the outlet lets nothing through: this one cannot get in, however long
    # we look.
    assert not was_put.wait(0.05)
    outlet.gate.set()
    assert was_put.wait(WAIT_SECONDS)
    producer.join()
    for job in jobs:
        with pytest.raises(ValueError, match="through"):
            job.future.result(WAIT_SECONDS)
    assert outlet.rows == [0, 1, 2, 3]
    end(thread)


def test_closing_fails_what_waits_and_lets_the_producer_go() -> None:
    outlet = Outlet()
    thread = TokenizerThread(outlet, max_queued_texts=1)
    jobs = [make_job(1) for _ in range(3)]
    thread.put(jobs[0], 0, ["a"], tokenize)
    assert outlet.arrived.wait(WAIT_SECONDS)
    thread.put(jobs[1], 1, ["a"], tokenize)
    errors: list[Exception] = []

    def put() -> None:
        try:
            thread.put(jobs[2], 2, ["a"], tokenize)
        except ClosedError as error:
            errors.append(error)

    producer = threading.Thread(target=put)
    producer.start()
    closer = threading.Thread(target=end, args=[thread])
    closer.start()
    producer.join(WAIT_SECONDS)
    assert len(errors) == 1
    with pytest.raises(ClosedError):
        jobs[1].future.result(WAIT_SECONDS)
    outlet.gate.set()
    closer.join(WAIT_SECONDS)
    assert not closer.is_alive()
    with pytest.raises(ClosedError):
        thread.put(make_job(1), 0, ["a"], tokenize)


def test_a_bad_text_fails_its_job_and_the_thread_lives_on() -> None:
    outlet = Outlet()
    outlet.gate.set()
    thread = TokenizerThread(outlet, max_queued_texts=9)
    bad, good, gone = make_job(1), make_job(1), make_job(1)
    gone.future.cancel()
    thread.put(bad, 0, [""], tokenize)
    thread.put(gone, 5, ["a"], tokenize)
    thread.put(good, 1, ["a"], tokenize)
    with pytest.raises(InputError, match="text 0"):
        bad.future.result(WAIT_SECONDS)
    with pytest.raises(ValueError, match="through"):
        good.future.result(WAIT_SECONDS)
    assert outlet.rows == [1]  # what nobody waits for was not even tokenized
    end(thread)

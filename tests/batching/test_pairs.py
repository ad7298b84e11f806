from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, processors

from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.pair_forms import Pair, longest_first
from embedlib.batching.tokenizing.pairs import PairTokenizer
from embedlib.batching.tokenizing.tokenizer import Side
from embedlib.config import OnTruncate
from embedlib.engines.base import Lane
from embedlib.errors import (
    ConfigError,
    EngineOutOfMemoryError,
    InputError,
    ModelUnsupportedError,
    SequenceTooLongError,
)
from embedlib.models.known_rerankers import known_reranker
from embedlib.models.spec import Head, ModelSpec, PairTemplate
from embedlib.testing import byte_tokenizer, fake_spec
from embedlib.testing.models.tokenizers import build_tokenizer
from tests.panics import PanickingTokenizer

TEMPLATE = PairTemplate(
    prefix="<", body="{instruction}|{query}|{document}", suffix=">", instruction="find"
)


def spec_of(max_seq_tokens: int, *, template: PairTemplate | None = None) -> ModelSpec:
    spec = fake_spec(
        max_seq_tokens, head=Head(labels=("score",), activation="sigmoid", template=template)
    )
    return replace(spec, encoder=replace(spec.encoder, num_token_types=2))


def bert() -> tokenizers.Tokenizer:
    """[CLS] first [SEP] second [SEP], the second of type 1, as every BERT has it."""
    tokenizer = plain("bert")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def llama() -> tokenizers.Tokenizer:
    """<|begin|> first <|begin|> second, behind a byte-level step as Llama 3 has it."""
    tokenizer = plain("begin")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin|> $A",
                pair="<|begin|> $A <|begin|>:1 $B:1",
                special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))],
            ),
        ]
    )
    return tokenizer


def plain(kind: str) -> tokenizers.Tokenizer:
    tokenizer, _ = build_tokenizer(kind)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


TOKENIZERS = {
    "bert": bert(),
    "llama": llama(),
    "bytes": byte_tokenizer(),
    **{kind: plain(kind) for kind in ("roberta", "xlm-roberta", "mistral", "gemma", "end")},
}


def pair_tokenizer(
    tokenizer: tokenizers.Tokenizer,
    max_seq_tokens: int,
    *,
    on_truncate: OnTruncate = "ignore",
    template: PairTemplate | None = None,
    meter: Meter | None = None,
) -> PairTokenizer:
    return PairTokenizer(
        tokenizer,
        spec_of(max_seq_tokens, template=template),
        on_truncate=on_truncate,
        meter=meter or Meter(lambda: 0.0),
    )


def sequences(
    tokenize: PairTokenizer, pairs: list[Pair], prompt: str = "", first_row: int = 0
) -> list[TokenizedText]:
    return tokenize(Job(len(pairs), 1, Lane.BULK), first_row, pairs, prompt)


def token_types(sequence: TokenizedText) -> list[int]:
    num_zeros = sequence.num_type0_tokens
    if num_zeros is None:
        num_zeros = sequence.num_tokens
    return [0] * num_zeros + [1] * (sequence.num_tokens - num_zeros)


texts = st.text(alphabet="ab the river,你 \nÉ", max_size=30)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=25)
@given(
    pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=5),
    room=st.integers(1, 40),
    side=st.sampled_from(["left", "right"]),
)
def test_ids_and_types_are_those_of_the_library(
    kind: str, pairs: list[Pair], room: int, side: Side
) -> None:
    tokenizer = TOKENIZERS[kind]
    max_seq_tokens = tokenizer.num_special_tokens_to_add(is_pair=True) + room
    reference = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    reference.enable_truncation(max_seq_tokens, strategy="longest_first", direction=side)
    expected = reference.encode_batch([(f"Q {first}", second) for first, second in pairs])
    tokenize = pair_tokenizer(tokenizer, max_seq_tokens).with_truncation("ignore", side)
    found = sequences(tokenize, pairs, prompt="Q ")
    assert [sequence.token_ids for sequence in found] == [item.ids for item in expected]
    assert [token_types(sequence) for sequence in found] == [item.type_ids for item in expected]
    assert [sequence.row for sequence in found] == list(range(len(pairs)))


@given(*[st.integers(0, 12)] * 3)
def test_longest_first_is_that_of_the_library(num_first: int, num_second: int, room: int) -> None:
    reference = byte_tokenizer()
    reference.enable_truncation(max(room, 1), strategy="longest_first")
    kept = reference.encode("a" * num_first, "b" * num_second).tokens
    assert longest_first(num_first, num_second, max(room, 1)) == (kept.count("a"), kept.count("b"))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("room", [9, 10, 20, 40])
def test_the_first_text_may_be_cut_alone_as_the_library_does_it(room: int, side: Side) -> None:
    tokenizer, pair = byte_tokenizer(), ("the river", "is wide.")
    reference = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    reference.enable_truncation(room, strategy="only_first", direction=side)
    spec, meter = spec_of(room), Meter(lambda: 0.0)
    keeping = PairTokenizer(tokenizer, spec, on_truncate="ignore", meter=meter, keeps_second=True)
    [found] = sequences(keeping.with_truncation("ignore", side), [pair])
    assert found.token_ids == reference.encode(*pair).ids


@pytest.mark.parametrize("limit", [2, 8])
def test_a_second_text_that_leaves_no_room_for_the_first_is_refused(limit: int) -> None:
    spec, meter = spec_of(limit), Meter(lambda: 0.0)
    keeping = PairTokenizer(
        byte_tokenizer(), spec, on_truncate="ignore", meter=meter, keeps_second=True
    )
    with pytest.raises(InputError, match=f"hypothesis 'is wide.' takes 8 of the {limit} tokens"):
        sequences(keeping, [("the river", "is wide.")])


def test_a_template_has_no_left_side() -> None:
    tokenize = pair_tokenizer(byte_tokenizer(), 20, template=TEMPLATE)
    with pytest.raises(ConfigError, match="truncated on the right"):
        sequences(tokenize.with_truncation("ignore", "left"), [("q", "d")])


def test_a_pair_of_bert_by_hand() -> None:
    tokenizer = bert()
    tokenize = pair_tokenizer(tokenizer, 9)
    assert tokenize.num_special_tokens == 3
    [sequence] = sequences(tokenize, [("the river", "is it in the city or not")])
    tokens = [tokenizer.id_to_token(token_id) for token_id in sequence.token_ids]
    assert tokens == ["[CLS]", "the", "river", "[SEP]", "is", "it", "in", "the", "[SEP]"]
    assert sequence.num_type0_tokens == 4


@pytest.mark.parametrize(("num_token_types", "has_token_types"), [(2, False), (1, True), (0, True)])
def test_a_model_without_token_types_has_none(num_token_types: int, has_token_types: bool) -> None:
    head = Head(labels=("score",), activation="sigmoid", has_token_types=has_token_types)
    spec = fake_spec(20, head=head)
    tokenize = PairTokenizer(
        bert(),
        replace(spec, encoder=replace(spec.encoder, num_token_types=num_token_types)),
        on_truncate="ignore",
        meter=Meter(lambda: 0.0),
    )
    [sequence] = sequences(tokenize, [("a", "b")])
    assert sequence.num_type0_tokens is None


def test_unknown_token_types_are_refused_where_the_second_text_has_others() -> None:
    head = Head(labels=("score",), activation="sigmoid", has_token_types=None)
    spec = replace(spec_of(20), head=head)
    with pytest.raises(ModelUnsupportedError, match=r"^tokenizer_config.json: model_input_names"):
        PairTokenizer(bert(), spec, on_truncate="ignore", meter=Meter(lambda: 0.0))
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(pair="$A $B", special_tokens=[])
    PairTokenizer(tokenizer, spec, on_truncate="ignore", meter=Meter(lambda: 0.0))


@pytest.mark.parametrize("pair", ["$B:0 $A:1", "$A:1 $B:0", "$A:0 $B:2", "$A:0 [SEP]:1 $B:0"])
def test_an_unknown_layout_is_refused(pair: str) -> None:
    tokenizer = bert()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair=pair, special_tokens=[("[SEP]", tokenizer.token_to_id("[SEP]"))]
    )
    with pytest.raises(ModelUnsupportedError, match=r"lays out a pair of texts as \["):
        pair_tokenizer(tokenizer, 20)


def test_a_query_is_tokenized_once_for_all_its_documents() -> None:
    tokenizer = byte_tokenizer()
    seen: list[list[str]] = []

    class Spy:
        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

        def encode_batch_fast(self, batch: list[str], **options: bool) -> list[tokenizers.Encoding]:
            seen.append(batch)
            return tokenizer.encode_batch_fast(batch, **options)

    tokenize = pair_tokenizer(Spy(), 20)  # type: ignore[arg-type] # all of a tokenizer that is used
    sequences(tokenize, [("q", "a"), ("q", "b"), ("other", "c")])
    assert seen == [["q", "other", "a", "b", "c"]]


def test_cut_pairs_are_told() -> None:
    tokenize = pair_tokenizer(byte_tokenizer(), 6)
    job = Job(3, 1, Lane.BULK, first_row=100)
    found = tokenize(job, 1, [("ab", "cdefgh"), ("ab", "cd")], "")
    assert job.truncated == [(101, 8)]
    assert [bytes(sequence.token_ids) for sequence in found] == [b"abcdef", b"abcd"]
    assert [sequence.row for sequence in found] == [1, 2]


def test_pairs_of_one_text_are_told_as_that_text() -> None:
    options: Any = {"meter": Meter(lambda: 0.0)}
    tokenize = PairTokenizer(byte_tokenizer(), spec_of(6), on_truncate="warn", **options)
    job = Job(9, 1, Lane.BULK, first_row=10, rows_per_text=3)
    long, short = ("abcde", "fg"), ("a", "b")
    # The pairs of text 1 are tokenized in two parts.
    tokenize(job, 0, [short, short, short, short, long], "")
    tokenize(job, 5, [long, short, long, long], "")
    assert job.truncated == [(11, 7), (12, 7)]
    refuse = PairTokenizer(byte_tokenizer(), spec_of(6), on_truncate="error", **options)
    with pytest.raises(SequenceTooLongError, match=r"^1 text is too long \(row 1: 7") as caught:
        refuse(Job(6, 1, Lane.BULK, rows_per_text=3), 0, [short] * 3 + [long] * 3, "")
    assert caught.value.rows == (1,)


def test_a_pair_that_is_too_long_may_be_an_error() -> None:
    tokenize = pair_tokenizer(byte_tokenizer(), 6, on_truncate="error")
    with pytest.raises(
        SequenceTooLongError, match=r"\(row 7: 8 tokens\), the limit is 6"
    ) as caught:
        sequences(tokenize, [("ab", "cdefgh")], first_row=7)
    assert (caught.value.rows, caught.value.max_seq_tokens) == ((7,), 6)
    assert [each.num_tokens for each in sequences(tokenize, [("ab", "cdef")])] == [6]


def test_the_statistics() -> None:
    ticks = iter(range(100))
    meter = Meter(lambda: float(next(ticks)))
    found = sequences(
        pair_tokenizer(byte_tokenizer(), 6, meter=meter), [("ab", "cdefgh"), ("a", "b")]
    )
    stats = meter.read()
    assert (stats.num_truncated, stats.tokenize_ms) == (1, 1000)
    assert [sequence.queued_at for sequence in found] == [1.0, 1.0]


@pytest.mark.parametrize("is_template", [True, False])
@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("a", None), "the second text of pair 8 is None, a NoneType; it must be a str"),
        ((b"a", "b"), "the first text of pair 8 is b'a', a bytes"),
        (("a", "b\ud800"), r"the second text of pair 8 has the lone surrogate '\\ud800' at char"),
    ],
)
def test_a_text_that_is_none_is_named(
    pair: tuple[str, str], message: str, is_template: bool
) -> None:
    tokenize = pair_tokenizer(byte_tokenizer(), 20, template=TEMPLATE if is_template else None)
    with pytest.raises(InputError, match=message):
        sequences(tokenize, [("a", "b"), pair], first_row=7)


def test_a_bad_prompt_is_named() -> None:
    with pytest.raises(InputError, match=r"^the prompt has the lone surrogate"):
        sequences(pair_tokenizer(byte_tokenizer(), 20), [("a", "b")], prompt="\ud800")


def test_a_pair_without_tokens_is_named() -> None:
    with pytest.raises(InputError, match="pair 1 has no tokens"):
        sequences(pair_tokenizer(byte_tokenizer(), 20), [("a", ""), ("", "")])


# Templates.


def test_a_template_is_filled() -> None:
    tokenize = pair_tokenizer(byte_tokenizer(), 40, template=TEMPLATE)
    assert tokenize.num_special_tokens == 2
    pairs = [("q{}", "{query}"), ("", "")]
    found = sequences(tokenize, pairs, prompt="in")
    assert [bytes(sequence.token_ids) for sequence in found] == [b"<in|q{}|{query}>", b"<in||>"]
    assert {sequence.num_type0_tokens for sequence in found} == {None}


@pytest.mark.parametrize("max_seq_tokens", [8, 9, 11])
def test_only_the_document_is_cut(max_seq_tokens: int) -> None:
    tokenize = pair_tokenizer(byte_tokenizer(), max_seq_tokens, template=TEMPLATE)
    job = Job(1, 1, Lane.BULK)
    [sequence] = tokenize(job, 0, [("q", "document")], "in")
    cut = b"document"[: max_seq_tokens - 7]
    assert bytes(sequence.token_ids) == b"<in|q|" + cut + b">"
    assert job.truncated == [(0, 15)]


def test_no_special_tokens_are_added_to_a_template() -> None:
    template = PairTemplate(prefix="[CLS] the", body="{query} [SEP] {document}", suffix="[SEP]")
    tokenizer = bert()
    [sequence] = sequences(pair_tokenizer(tokenizer, 20, template=template), [("of", "and")])
    tokens = [tokenizer.id_to_token(token_id) for token_id in sequence.token_ids]
    assert tokens == ["[CLS]", "the", "of", "[SEP]", "and", "[SEP]"]


@pytest.mark.parametrize("lines_apart", [True, False])
def test_the_lines_of_a_body_may_be_tokenized_one_by_one(lines_apart: bool) -> None:
    # Qwen's tokenizers have a token for "?" with the end of its line.
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({"q": 1, "?": 2, "\n": 3, "?\n": 4, "d": 5, "!": 6, "!\n": 7}, "q")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\p{L}|[^\s\p{L}]+\n*|\n"), "isolated")
    template = PairTemplate(
        prefix="", body="{query}\n{document}", suffix="\n", lines_apart=lines_apart
    )
    [sequence] = sequences(pair_tokenizer(tokenizer, 20, template=template), [("q!\nq?", "d?")])
    middle = [2, 3] if lines_apart else [4]
    assert sequence.token_ids == [1, 7, 1, *middle, 5, 2, 3]


def mxbai_ids(tokenizer: tokenizers.Tokenizer, query: str, document: str, limit: int) -> list[int]:
    """A pair's ids. Source: `prepare_inputs` in mxbai_rerank_v2.py of mxbai-rerank 0.1.6."""
    prefix = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\n"
    )
    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. "
        "For each query-document pair, carefully analyze the semantic relationship between them, "
        "then provide your binary relevance judgment (0 for not relevant, 1 for relevant)."
        "\nRelevance:"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n"
    before, line, question, after, first, second = (
        tokenizer.encode(text, add_special_tokens=False).ids
        for text in (prefix, "\n", task, suffix, f"query: {query}", f"document: {document}")
    )
    max_length = limit - len(before + question + after + line)
    pair = [*first, *line, *second][:max_length]
    return [*before, *pair, *line, *question, *after]


def qwen3_ids(tokenizer: tokenizers.Tokenizer, query: str, document: str, limit: int) -> list[int]:
    """A pair's ids. Source: the code of the model card of Qwen/Qwen3-Reranker-0.6B."""
    prefix = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    task = "Given a web search query, retrieve relevant passages that answer the query"
    body = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
    before, middle, after = (
        tokenizer.encode(text, add_special_tokens=False).ids for text in (prefix, body, suffix)
    )
    return [*before, *middle[: limit - len(before) - len(after)], *after]


signs = st.text(alphabet="ab the?.! \r\n\t'1é你", max_size=20)


@settings(deadline=None, max_examples=60)
@given(query=signs, document=signs, cut=st.integers(0, 12))
def test_a_template_is_tokenized_as_its_authors_do_it(query: str, document: str, cut: int) -> None:
    tokenizer = plain("chat")
    for name, authors_ids in (("mxbai-rerank-v2", mxbai_ids), ("qwen3-reranker", qwen3_ids)):
        template = known_reranker(name).template
        # Room for one token of a document is the least that there may be.
        least = len(authors_ids(tokenizer, query, "", 10_000)) + 1
        limit = max(least, len(authors_ids(tokenizer, query, document, 10_000)) - cut)
        tokenize = pair_tokenizer(tokenizer, limit, template=template)
        prompt = template.instruction
        [sequence] = sequences(tokenize, [(query, document)], prompt=prompt)
        assert sequence.token_ids == authors_ids(tokenizer, query, document, limit)


def ctxl_ids(tokenizer: tokenizers.Tokenizer, query: str, document: str, task: str) -> list[int]:
    """A pair's ids. Source: the code of the model card of ctxl-rerank-v2-instruct-multilingual."""
    task = f" {task}" if task else ""
    text = (
        "Check whether a given document contains information helpful to answer the query.\n"
        f"<Document> {document}\n<Query> {query}{task} ??"
    )
    return tokenizer.encode(text, add_special_tokens=False).ids


@settings(deadline=None, max_examples=30)
@given(query=signs, document=signs, task=st.sampled_from(["", "is it?"]), cut=st.integers(0, 9))
def test_a_tail_stays_whole_behind_a_document_that_is_cut(
    query: str, document: str, task: str, cut: int
) -> None:
    tokenizer = plain("chat")
    template = known_reranker("ctxl-rerank-v2").template
    whole = ctxl_ids(tokenizer, query, document, task)
    limit = max(len(whole) - cut, len(ctxl_ids(tokenizer, query, "", task)) + 1)
    tokenize = pair_tokenizer(tokenizer, limit, template=template)
    [sequence] = sequences(tokenize, [(query, document)], prompt=task)
    cuts = [ctxl_ids(tokenizer, query, document[:end], task) for end in range(len(document) + 1)]
    assert sequence.token_ids in [ids for ids in cuts if len(ids) <= limit]
    assert (sequence.token_ids == whole) == (len(whole) <= limit)


def test_a_document_before_a_tail_keeps_what_fits() -> None:
    tokenizer, document = plain("chat"), "the cab at a bath " * 3
    template = known_reranker("ctxl-rerank-v2").template
    num_tokens = len(ctxl_ids(tokenizer, "bat?", document, ""))
    for limit in range(num_tokens - 9, num_tokens):
        tokenize = pair_tokenizer(tokenizer, limit, template=template)
        [sequence] = sequences(tokenize, [("bat?", document)])
        assert sequence.num_tokens == limit


def test_the_end_of_a_query_and_its_line_are_two_tokens_for_mxbai() -> None:
    tokenizer = plain("chat")
    template = known_reranker("mxbai-rerank-v2").template
    apart, joined = (
        sequences(pair_tokenizer(tokenizer, 1000, template=form), [("is it?", "it is.")])[0]
        for form in (template, replace(template, lines_apart=False))
    )
    assert apart.num_tokens == joined.num_tokens + 1
    assert tokenizer.token_to_id("?Ċ") in joined.token_ids
    assert tokenizer.token_to_id("?Ċ") not in apart.token_ids


@pytest.mark.parametrize("max_seq_tokens", [7, 5])
def test_a_query_that_leaves_no_room_is_refused(max_seq_tokens: int) -> None:
    tokenize = pair_tokenizer(byte_tokenizer(), max_seq_tokens, template=TEMPLATE)
    with pytest.raises(
        InputError, match=f"'q' takes 5 of the {max_seq_tokens - 2} tokens that the limit of"
    ):
        sequences(tokenize, [("q", "document")], prompt="in")


def test_a_tokenizer_without_memory_does_not_blame_the_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenize = pair_tokenizer(bert(), 20)
    monkeypatch.setattr(tokenize._form, "_tokenizer", PanickingTokenizer(MemoryError))
    with pytest.raises(EngineOutOfMemoryError):
        sequences(tokenize, [("a", "b")])


def test_a_pre_tokenizer_sees_each_text_of_a_pair_as_a_first_one() -> None:
    # What a joined string would get wrong: only the first text of a string gets the sign in front.
    tokenizer = plain("mistral")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    [sequence] = sequences(pair_tokenizer(tokenizer, 20), [("river", "river")])
    assert sequence.token_ids == tokenizer.encode("river", "river").ids


@pytest.mark.parametrize("num_pairs", [1, 3])
def test_what_the_tokenizer_itself_refuses_is_an_input_error(
    monkeypatch: pytest.MonkeyPatch, num_pairs: int
) -> None:
    tokenize = pair_tokenizer(bert(), 20)
    monkeypatch.setattr(tokenize._form, "_tokenizer", PanickingTokenizer())
    with pytest.raises(InputError, match=r"^\d texts failed to tokenize: no entry found for key$"):
        sequences(tokenize, [("a", "b")] * num_pairs)

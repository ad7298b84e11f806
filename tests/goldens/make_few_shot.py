"""Write few_shot.json: token ids of bge-en-icl's queries, as FlagEmbedding makes them.

    python tests/goldens/make_few_shot.py

Run by hand, in an environment with the `goldens` dependency group. The formatting is a
reimplementation of `encode_queries_single_device` and `set_examples` of FlagEmbedding (7ed43d6,
inference/embedder/decoder_only/icl.py), on the tokenizer class of transformers. There are two
tokenizers of Llama's type: with the template's tokens in the vocabulary and without.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
SUFFIX = "\n<response>"
TASK = "find what answers it"
EXAMPLES = [
    {"instruct": "find a place", "query": "where is it", "response": "in the city\nby the river"},
    {"instruct": "say more", "query": "what runs", "response": "the fox, and the dog"},
]
QUERIES = [
    "",
    "river",
    "  two  spaces and a line\nand a tab\t.",
    "the quick brown fox jumps over the lazy dog " * 5,
    "no <query> here, and </s> no <response> there",
    "<query>" * 40,
    "naïve \N{SNOWMAN} \N{GRINNING FACE} 你好世界" * 6,
    "a\n",
]
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "river", "city", "runs")


def build_tokenizer(special: list[str]) -> Tokenizer:
    """Return BPE with byte fallback, ▁ for a space, <s> text </s>: as Mistral's tokenizer."""
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        spelling = f"▁{word}"
        for end in range(1, len(spelling)):
            merges[spelling[:end], spelling[end]] = None
    letters = sorted({letter for word in WORDS for letter in word} | set("<>/▁.,acqsuy"))
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    pieces += [left + right for left, right in merges]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    model = models.BPE(vocab, list(merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", *special])
    return tokenizer


def query_ids(tokenizer: Any, queries: list[str], examples: Any, max_length: int) -> Any:
    """Return the token ids of queries with a task, preceded by the examples."""
    shown = [
        f"<instruct>{e['instruct']}\n<query>{e['query']}\n<response>{e['response']}"
        for e in examples
    ]
    prefix = "\n\n".join(shown) + "\n\n" if examples else ""
    num_prefix = len(tokenizer(prefix, add_special_tokens=False)["input_ids"])
    num_suffix = len(tokenizer(SUFFIX, add_special_tokens=False)["input_ids"])
    num_begin = len(tokenizer("<s>", add_special_tokens=False)["input_ids"])
    num_end = len(tokenizer(SUFFIX + "</s>", add_special_tokens=False)["input_ids"])
    cut = tokenizer(
        [f"<instruct>{TASK}\n<query>{query}" for query in queries],
        max_length=max_length - num_begin - num_end,
        truncation=True,
        add_special_tokens=False,
    )
    texts = [prefix + text + SUFFIX for text in tokenizer.batch_decode(cut["input_ids"])]
    longest = (num_prefix + num_suffix + max_length + 8) // 8 * 8 + 8
    return tokenizer(texts, truncation=True, max_length=longest, add_special_tokens=True)[
        "input_ids"
    ]


def main() -> None:
    cases = []
    for special in ([], ["<instruct>", "<query>", "<response>"]):
        rust = build_tokenizer(special)
        written = rust.to_str()
        reference = PreTrainedTokenizerFast(
            tokenizer_object=rust, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        )
        for examples in ([], EXAMPLES):
            for max_length in (64, 512):
                ids = query_ids(reference, QUERIES, examples, max_length)
                passages = reference(QUERIES, truncation=True, max_length=max_length)
                cases.append(
                    {
                        "tokenizer": len(special),
                        "examples": examples,
                        "max_length": max_length,
                        "query_ids": ids,
                        "passage_ids": passages["input_ids"],
                    }
                )
        cases[-1]["tokenizer_json"] = written
    content = {
        "provenance": {
            "command": f"python {Path(sys.argv[0]).name}",
            "versions": {name: version(name) for name in ("transformers", "tokenizers")},
            "formatting": "FlagEmbedding 7ed43d6, inference/embedder/decoder_only/icl.py",
        },
        "task": TASK,
        "queries": QUERIES,
        "tokenizers": {
            str(case["tokenizer"]): case.pop("tokenizer_json")
            for case in cases
            if "tokenizer_json" in case
        },
        "cases": cases,
    }
    text = json.dumps(content, ensure_ascii=False)
    (HERE / "few_shot.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Scores of rerankers by their template, beside transformers with the authors' prompt and token.

Each is a tiny decoder; the prompts are restated from the places that known_rerankers.json names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Reranker
from embedlib.errors import ModelUnsupportedError
from embedlib.testing.models.decoders import DECODER, GEMMA, QWEN3
from embedlib.testing.models.variant import Json, TinyVariant
from embedlib.testing.models.write import _write_weights, write_variant

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the scores are those of transformers")

PAIRS = [
    ("what runs through the city?", "The river runs through the city. It is small."),
    ("a fox", "hello world"),
    ("who is it", "the quick brown fox jumps over the lazy dog"),
    ("query", "é 你好 12"),
]
CTXL = "Check whether a given document contains information helpful to answer the query.\n"
ASKED = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the "
    "query by providing a prediction of either 'Yes' or 'No'."
)


@dataclass(frozen=True)
class Case:
    """A template, the tiny model that it is for, and what the authors do."""

    config: Json
    tokenizer: str
    prompt: Callable[[str, str], list[str]]
    """Returns the parts that are tokenized, one by one."""
    answer: str | None
    """The token whose logit is the score; None: the model has a head."""
    divisor: float = 1.0


def zerank(query: str, document: str) -> list[str]:
    body = f"{query}<|im_end|>\n<|im_start|>user\n{document}"
    return [f"<|im_start|>system\n{body}<|im_end|>\n<|im_start|>assistant\n"]


def ctxl(query: str, document: str) -> list[str]:
    return [f"{CTXL}<Document> {document}\n<Query> {query} ??"]


def gemma(query: str, document: str) -> list[str]:
    return ["<bos>", f"A: {query}", "\n", f"B: {document}", "\n", ASKED]


LM: Json = {"tie_word_embeddings": False, "max_position_embeddings": 500}
CASES = {
    "zerank": Case(QWEN3 | LM, "chat", zerank, "Yes", 5.0),
    "ctxl-rerank-v2": Case(QWEN3 | LM, "chat", ctxl, "!"),
    "ctxl-rerank-v2-6b": Case(
        DECODER | LM | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
        "mistral",
        lambda query, document: ["<s>", *ctxl(query, document)],
        "<unk>",
    ),
    "bge-reranker-v2-gemma": Case(
        GEMMA | {"architectures": ["GemmaForCausalLM"], "max_position_embeddings": 500},
        "gemma",
        gemma,
        "Yes",
    ),
    "nemotron-rerank": Case(
        DECODER
        | LM
        | {
            "model_type": "llama_bidirec",
            "architectures": ["LlamaBidirectionalForSequenceClassification"],
            "num_labels": 1,
        },
        "begin",
        lambda query, document: [
            "<|begin_of_text|>",
            f"question:{query} \n \n passage:{document}",
        ],
        None,
    ),
}


def write(folder: Path, template: str, case: Case) -> None:
    row = TinyVariant(
        tokenizer=case.tokenizer, config=case.config, with_head=True, template=template,
        prefix="model.",
    )  # fmt: skip
    with suppress(ModelUnsupportedError):  # the answer's token is not there yet
        write_variant(folder, template, row)
    # In the place of a token that is there, so that no id is beyond the model's.
    path = folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    if case.tokenizer == "begin":
        text = text.replace("<|begin|>", "<|begin_of_text|>")
    elif case.answer == "Yes":
        content = json.loads(text)
        vocab = content["model"]["vocab"]
        vocab["Yes"] = vocab.pop(max(vocab, key=lambda piece: vocab[piece]))
        content["model"]["merges"] = [
            pair for pair in content["model"]["merges"] if "".join(pair) in vocab
        ]
        text = json.dumps(content)
    path.write_text(text, encoding="utf-8")
    _write_weights(folder, template, row)


def expected(folder: Path, case: Case) -> list[float]:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    options: Any = {"dtype": torch.float32, "attn_implementation": "eager"}
    if case.answer is None:
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "llama", "is_causal": False, "architectures": ["LlamaModel"]}
        model = transformers.AutoModel.from_pretrained(
            folder, config=transformers.LlamaConfig(**config), **options
        )
        from safetensors.torch import load_file

        score = load_file(folder / "model.safetensors")["score.weight"][0]
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    scores = []
    for query, document in PAIRS:
        ids: list[int] = []
        for part in case.prompt(query, document):
            ids += tokenizer(part, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            found = model(torch.tensor([ids]))
        if case.answer is None:
            scores.append(float(found.last_hidden_state[0].mean(0) @ score))
        else:
            token = tokenizer.convert_tokens_to_ids(case.answer)
            scores.append(float(found.logits[0, -1, token]) / case.divisor)
    return scores


@pytest.mark.parametrize("template", CASES)
def test_scores_are_those_of_the_authors_prompt(template: str, tmp_path: Path) -> None:
    case = CASES[template]
    write(tmp_path, template, case)
    with Reranker(tmp_path, template=template, threads=1, precision="float32") as reranker:
        scores = reranker.predict(PAIRS, raw_scores=True)
    wanted = np.array(expected(tmp_path, case))
    assert np.ptp(wanted) > 0.01
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())

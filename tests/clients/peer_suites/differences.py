"""Which of the peers' tests are none of a server's, and which differ on purpose: the reasons."""

from __future__ import annotations

import re
from collections.abc import Mapping

DUMMY = "reads the vectors of a dummy engine, such as the length of the text"
WEIGHTS = "reads scores that only the weights of the named model give"

NOT_OURS: Mapping[str, Mapping[str, str]] = {
    "baseten": {"test_embed_gil_release": "compares times"},
    "infinity": {
        "test_openapi_same_as_docs_file": "compares with Infinity's own description",
        r"dummymodel.py::test_(embedding|matryoshka_embedding)$": DUMMY,
        r"sentence_transformers.py::test_batch_embedding": "compares times",
        r"torch_reranker.py::test_load_model": WEIGHTS,
    },
    "vllm": {},
}
"""By suite: a pattern of tests' names, and what they need that no other server has."""

WRONG_KEY = "a wrong key is 401, as for OpenAI's clients, not 403"
TRUNCATED = "long texts are truncated, and the answer says so; they are refused where asked"
DECIMALS = "decimals are the shortest that give the same float32 again"
LIMIT = "the limit of a text is the server's, --max-seq-tokens"
TOKENS = "special tokens are the model's, and texts are not padded; another wish is refused"
CHAT = "no chat: texts, not messages"
EMPTY = "an empty text is a text"
TEXTS = "token ids are taken for vectors, in /v1/embeddings and /embed; other routes take texts"
WORDS = "the words of a message, or the name of its type"
FP8 = "vectors are sent as float32, float16 or bfloat16, not as fp8"
LENGTH = "vectors have the length that the model gives them"
CUT = "vectors of every model are cut to `dimensions`"
FIELDS = "documents are sent back where return_documents asks for them"
DOCUMENT = "a reranked document is an object with `text`, as of Cohere and vLLM"
STATUS = "a wrong field is 400 on OpenAI's routes, not 422; top_n = 0 means all, as in vLLM"

DIFFERENCES: Mapping[str, Mapping[str, str]] = {
    "baseten": {"test_wrong_api_key": WRONG_KEY},
    "infinity": {
        "test_embedding_max_length": TRUNCATED,
        "test_encoding_base_64": DECIMALS,
        "test_reranker_invalid_top_n": STATUS,
        "test_reranker_top_n": DOCUMENT,
    },
    "vllm": {
        "test_(smaller|bigger)_truncation_size": LIMIT,
        "test_truncate_prompt_tokens": LIMIT,
        "test_rerank_max_tokens_per_doc$": LIMIT,
        "test_empty_input_error": EMPTY,
        "test_(add_special_tokens|padding)": TOKENS,
        "test_(invocations_)?chat_request": CHAT,
        r"classify/.*::test_completion_request(_batched)?\[": TEXTS,
        r"classify/.*::test_(score|rerank)\[": WORDS,
        "test_params_not_supported": WORDS,
        "test_unsupported_input_type_rejected": WORDS,
        "test_rerank_max_tokens_per_doc_validation": WORDS,
        "test_pooling_not_supported": WORDS,
        "test_(base64|bytes|bytes_only)_embed_dtype": FP8,
        "embed/test_online.py::test_use_activation": LENGTH,
        "test_matryoshka": CUT,
        "test_rerank_api_(texts|top_n)": FIELDS,
        "test_(rerank|score)_api_max_model_len": TRUNCATED,
    },
}
"""By suite: a pattern of the names of tests that differ on purpose, and the line of
docs/serve.md."""


def reason_for(name: str, patterns: Mapping[str, str]) -> str | None:
    """Return the reason of the first pattern that is found in a test's name."""
    return next((reason for regex, reason in patterns.items() if re.search(regex, name)), None)

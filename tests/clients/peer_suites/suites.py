"""The suites: which files, and what is edited in them so that they meet a server of ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """The tests of a peer that speak HTTP."""

    folder: str
    """Of the checkout."""
    files: tuple[str, ...]
    edits: tuple[tuple[str, str], ...] = ()
    """Regular expressions and replacements; MODELS is the folder of models."""


SUITES = {
    "baseten": Suite(
        "baseten-performance-client/python_bindings/tests",
        ("conftest.py", "test_bindings.py", "test_client_embed.py"),
        ((r'"https://model-\w+\.api\.baseten\.co/[\w/]+"', 'os.environ["PEER_URL"] + "/sync"'),),
    ),
    "infinity": Suite(
        "libs/infinity_emb/tests",
        (
            "conftest.py",
            "end_to_end/conftest.py",
            *(f"end_to_end/test_{name}.py" for name in ("api_with_dummymodel", "authentication")),
            *(f"end_to_end/test_{name}.py" for name in ("sentence_transformers", "torch_classify")),
            "end_to_end/test_torch_reranker.py",
        ),
        (
            (r'^PREFIX = ".*"$', 'PREFIX = ""'),
            (r'^(pytest\.DEFAULT_\w+_MODEL = ")', r"\1MODELS/"),
            # It is the current directory's parents' otherwise, which are not the checkout's.
            (r"^PATH_OPENAPI = ", 'PATH_OPENAPI = pathlib.Path("/none") or '),
        ),
    ),
    "vllm": Suite(
        "tests/entrypoints/pooling",
        (
            "basic/test_truncation.py",
            "classify/test_online.py",
            *(f"embed/test_{name}.py" for name in ("online", "online_dimensions", "cohere_online")),
            "embed/test_cohere_openai_parity.py",
            "scoring/test_bi_encoder_online.py",
            "scoring/test_cross_encoder_online.py",
        ),
    ),
}

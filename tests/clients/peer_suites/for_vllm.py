"""What vLLM's tests import: its remote server, which is ours, and a few definitions of its own.

The definitions are read from the checkout: importing vLLM would need all that it is built of.
"""

from __future__ import annotations
import __future__

import ast
import math
import sys
import time
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, Literal, TypeVar

import openai
import pydantic
import pytest
import serving
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch.nn import functional
from transformers import AutoTokenizer


class Remote:
    """A server of one model, as the tests ask for it."""

    def __init__(self, model: str, args: list[str]) -> None:
        """Read the limit of tokens; the other arguments choose vLLM's engine."""
        options = ["--token-ids"]  # the tests send those of the model
        if "--max-model-len" in args and "rerank" not in model and "apeach" not in model:
            options += ["--max-seq-tokens", args[args.index("--max-model-len") + 1]]
        self._url = serving.url_of([model], *options)

    def __enter__(self) -> Remote:
        """Return the server."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave it to the next one to end it."""

    def url_for(self, *parts: str) -> str:
        """Return the URL of a path."""
        return "/".join([self._url, *(part.strip("/") for part in parts)])

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """Return the SDK's client of this server."""
        return openai.AsyncOpenAI(
            base_url=self.url_for("v1"), api_key="-", max_retries=0, timeout=60, **options
        )


class Reference:
    """The same model by sentence-transformers."""

    def __init__(self, name: str, *, is_cross_encoder: bool = False, **options: Any) -> None:
        """Load it."""
        folder = str(serving.models_folder / name)
        self._model: Any = (CrossEncoder if is_cross_encoder else SentenceTransformer)(folder)

    def __enter__(self) -> Reference:
        """Return the model."""
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def encode(self, texts: list[str]) -> Any:
        """Return the vectors of texts."""
        return self._model.encode(texts)

    def predict(self, pairs: list[list[str]]) -> torch.Tensor:
        """Return the scores of pairs, by the activation that the model names."""
        return torch.as_tensor(self._model.predict(pairs))


class BiEncoderReference(Reference):
    """The cosine of vectors as the score of a pair."""

    def predict(self, pairs: list[list[str]]) -> torch.Tensor:
        """Return the cosines."""
        vectors = [torch.as_tensor(self.encode(pair)) for pair in pairs]
        return torch.stack([functional.cosine_similarity(*each, dim=0) for each in vectors])


class OpenAIBaseModel(pydantic.BaseModel):
    """The base of vLLM's answers: other fields are allowed."""

    model_config = pydantic.ConfigDict(extra="allow")


@pytest.fixture(scope="session")
def hf_runner() -> type[Reference]:
    """The reference."""
    return Reference


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each module the token ids of the model that stands in."""
    for module in {item.getparent(pytest.Module).obj for item in items}:  # type: ignore[union-attr]
        if hasattr(module, "input_tokens"):
            tokenizer = AutoTokenizer.from_pretrained(serving.models_folder / module.MODEL_NAME)
            module.input_tokens[:] = tokenizer(module.input_text)["input_ids"]


def install(checkout: Path) -> None:
    """Put the modules in place."""
    vllm = checkout / "vllm"
    serial = _load("vllm.utils.serial_utils", vllm / "utils" / "serial_utils.py")
    known: dict[str, Any] = {
        "BaseModel": pydantic.BaseModel,
        "Field": pydantic.Field,
        "Any": Any,
        "time": time,
        "Literal": Literal,
        "Generic": Generic,
        "T": TypeVar("T"),
        "random_uuid": lambda: "",
        "OpenAIBaseModel": OpenAIBaseModel,
        "ScoreContentPartParam": Any,
        "math": math,
        "torch": torch,
        "F": functional,
        "dataclass": dataclass,
        "pytest": pytest,
        **{name: getattr(serial, name) for name in ("EMBED_DTYPES", "binary2tensor")},
    }
    usage = ("PromptTokenUsageInfo", "CompletionTokenUsageInfo", "UsageInfo")
    _take("usage", vllm / "entrypoints/serve/engine/protocol.py", usage, known)
    pooling = vllm / "entrypoints" / "pooling"
    for name, classes in {
        "embed": ("EmbeddingResponseData", "EmbeddingResponse"),
        "classify": ("ClassificationData", "ClassificationResponse"),
        "pooling": ("PoolingResponseData", "PoolingResponse"),
        "scoring": (
            *("RerankDocument", "RerankResult", "RerankUsage", "RerankResponse"),
            *("ScoreResponseData", "ScoreResponse"),
        ),
    }.items():
        path = pooling / name / "protocol.py"
        _take(f"vllm.entrypoints.pooling.{name}.protocol", path, classes, known)
    items = ("MetadataItem", "build_metadata_items", "decode_pooling_output")
    _take("vllm.entrypoints.pooling.utils", pooling / "utils.py", items, known)
    helpers = ("check_embeddings_close", "matryoshka_fy", "ModelInfo", "EmbedModelInfo")
    _take("tests.models.utils", checkout / "tests/models/utils.py", helpers, known)
    checks = ("float_embeddings", "run_embedding_correctness_test")
    path = checkout / "tests/models/language/pooling/embed_utils.py"
    _take("tests.models.language.pooling.embed_utils", path, checks, known)
    _put("tests.utils", RemoteOpenAIServer=Remote, ROCM_EXTRA_ARGS=[])
    _put("tests.conftest", HfRunner=Reference)
    _put("tests.entrypoints.pooling.scoring.util", EncoderScoringHfRunner=BiEncoderReference)
    _put("vllm.platforms", current_platform=SimpleNamespace(is_rocm=lambda: False))
    _put("vllm.renderers.chat_utils", ChatCompletionMessageParam=dict)
    _put("vllm.tokenizers", get_tokenizer=_tokenizer)


def _tokenizer(tokenizer_name: str) -> Any:
    return AutoTokenizer.from_pretrained(serving.models_folder / tokenizer_name)


def _take(module: str, path: Path, names: tuple[str, ...], known: dict[str, Any]) -> None:
    """Put definitions of a file into a module, and add them to those that are known."""
    found = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in names
    ]
    # Annotations as text: they name much that the tests do not need.
    flags = __future__.annotations.compiler_flag
    code = compile(ast.Module(found, []), str(path), "exec", flags=flags)
    namespace = vars(_put(module, **known))
    exec(code, namespace)
    known |= {name: namespace[name] for name in names}


def _load(name: str, path: Path) -> ModuleType:
    """Import a file that needs nothing of vLLM, as the module of this name."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def _put(name: str, **content: Any) -> ModuleType:
    """Make a module with this content; those above it are packages without files."""
    above = name.rpartition(".")[0]
    if above and above not in sys.modules:
        _put(above, __path__=[])
    sys.modules[name] = made = ModuleType(name)
    vars(made).update(content)
    return made

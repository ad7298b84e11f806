"""fastembed, infinity and model2vec, in this process as their users run them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from embedlib.bench.contestants.contestant import Contestant
from embedlib.models.reading.files import read_model_files
from embedlib.models.spec import Pooling
from embedlib.vectors.arrays import Vectors


def pooling_of(folder: Path) -> str:
    """Return the pooling of a model: "cls", "mean" or "last_token".

    Raises:
        ValueError: it has several, or another one.
    """
    spec = read_model_files(folder).spec
    modes = next((module.modes for module in spec.modules if isinstance(module, Pooling)), ())
    if modes not in (("cls",), ("mean",), ("last_token",)):
        raise ValueError(f"pooling {'+'.join(modes)!r}; only cls, mean and last_token are measured")
    return modes[0]


class FastembedContestant(Contestant):
    """fastembed with a custom model: an ONNX file, as its docs say."""

    library = "fastembed"
    packages = ("fastembed", "onnxruntime", "tokenizers", "numpy")

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Describe the model and make a TextEmbedding; export it the first time."""
        fastembed = import_module("fastembed")
        description = import_module("fastembed.common.model_description")
        exported = cache_dir / "exported"
        if not exported.is_dir():
            _export_onnx(folder, exported)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        fastembed.TextEmbedding.add_custom_model(
            model="embedlib/measured",
            pooling=description.PoolingType[pooling_of(folder).upper()],
            normalization=True,
            sources=description.ModelSource(hf="embedlib/measured"),
            dim=config["hidden_size"],
            model_file="onnx/model.onnx",
        )
        self._model = fastembed.TextEmbedding(
            "embedlib/measured", threads=threads, specific_model_path=str(exported)
        )

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Encode in batches of `batch_size` texts, in the order they come."""
        assert batch_size is not None, "peers get a batch size; this is a bug in embedlib"
        return np.stack(list(self._model.embed(texts, batch_size=batch_size)))

    def query(self, text: str) -> Vectors:
        """Encode one text."""
        vector: Vectors = next(iter(self._model.query_embed(text)))
        return vector


def _export_onnx(folder: Path, exported: Path) -> None:
    """Write a model as ONNX in float32, with the files that fastembed asks for."""
    from sentence_transformers import SentenceTransformer

    arguments = {"export": True, "provider": "CPUExecutionProvider"}
    model = SentenceTransformer(
        str(folder), device="cpu", local_files_only=True, backend="onnx", model_kwargs=arguments
    )
    model.save_pretrained(str(exported))
    special = exported / "special_tokens_map.json"
    if not special.exists():  # newer releases of transformers keep it in tokenizer_config.json
        text = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
        tokens = {
            name: token for name, token in json.loads(text).items() if name.endswith("_token")
        }
        special.write_text(json.dumps(tokens), encoding="utf-8")


class InfinityContestant(Contestant):
    """infinity's engine in process, with its defaults: torch, 32 texts a batch."""

    library = "infinity_emb"
    packages = ("infinity-emb", "sentence-transformers", "transformers", "torch")

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Start an engine."""
        import torch

        infinity = import_module("infinity_emb")
        torch.set_num_threads(threads)
        arguments = infinity.EngineArgs(
            model_name_or_path=str(folder), device="cpu", served_model_name="measured"
        )
        self._model = infinity.SyncEngineArray.from_args([arguments])

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Embed all texts in one call."""
        vectors, _ = self._model.embed(model="measured", sentences=texts).result()
        return np.stack(vectors)


class Model2vecContestant(Contestant):
    """model2vec with its defaults, which computes static models alone: 1024 texts a batch."""

    library = "model2vec"
    packages = ("model2vec", "tokenizers", "numpy")

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Read the table; the number of threads is that of the tokenizer, which is not told."""
        self._model = import_module("model2vec").StaticModel.from_pretrained(folder)

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Embed all texts in one call."""
        vectors: Vectors = self._model.encode(texts)
        return vectors

    def query(self, text: str) -> Vectors:
        """Embed one text."""
        vector: Vectors = self._model.encode(text)
        return vector

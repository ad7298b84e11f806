"""sentence-transformers by each of its backends."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from embedlib.bench.contestants.contestant import Contestant
from embedlib.engines.machine import Machine
from embedlib.vectors.arrays import Vectors

_ONNX_FILES = (("avx512_vnni", "avx512_vnni"), ("avx512f", "avx512"), ("", "avx2"))
"""By the best instruction of the CPU, the name of the int8 configuration made for it.

Source: sentence-transformers 6.2, `export_dynamic_quantized_onnx_model`.
"""


class SentenceTransformersContestant(Contestant):
    """sentence-transformers with its torch backend, in float32 or, by one argument, in bfloat16."""

    library = "sentence_transformers"
    packages: tuple[str, ...] = ("sentence-transformers", "transformers", "torch", "numpy")

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__()
        self._dtype = dtype

    def load(self, folder: Path, cache_dir: Path, threads: int, options: dict[str, Any]) -> None:
        """Make a SentenceTransformer."""
        import torch

        torch.set_num_threads(threads)
        self._model = self._construct(folder, cache_dir, threads)

    def _construct(self, folder: Path, cache_dir: Path, threads: int) -> Any:
        # Models stored in half precision would otherwise be computed in it.
        return self._make(folder, model_kwargs={"torch_dtype": self._dtype})

    def _make(self, folder: Path, **arguments: Any) -> Any:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder), device="cpu", local_files_only=True, **arguments)

    def encode(self, texts: list[str], batch_size: int | None) -> Vectors:
        """Encode in batches of `batch_size` texts; the library sorts them by length."""
        assert batch_size is not None, "peers get a batch size; this is a bug in embedlib"
        vectors: Vectors = self._model.encode(texts, batch_size=batch_size, show_progress_bar=False)
        return vectors

    def query(self, text: str) -> Vectors:
        """Encode one text."""
        vector: Vectors = self._model.encode(text, show_progress_bar=False)
        return vector

    def precision(self) -> str:
        """Return float32 or bf16."""
        return {"bfloat16": "bf16"}.get(self._dtype, self._dtype)


class OpenVINOContestant(SentenceTransformersContestant):
    """sentence-transformers with its openvino backend, as it comes or with hints to OpenVINO."""

    packages = (*SentenceTransformersContestant.packages, "optimum-intel", "openvino")

    def __init__(self, **hints: str) -> None:
        super().__init__()
        self._hints = hints

    def _construct(self, folder: Path, cache_dir: Path, threads: int) -> Any:
        exported = cache_dir / "exported"
        is_exported = exported.is_dir()
        config = {"INFERENCE_NUM_THREADS": str(threads), **self._hints}
        return self._make(
            exported if is_exported else folder,
            backend="openvino",
            model_kwargs={"export": not is_exported, "ov_config": config},
        )

    def fill_cache(self, cache_dir: Path) -> None:
        """Keep the exported model: a user would not convert it at every start."""
        self._model.save_pretrained(str(cache_dir / "exported"))

    def precision(self) -> str:
        """Return what OpenVINO chose for this CPU."""
        compiled = self._model[0].model.request
        chosen = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        return {"f32": "float32"}.get(chosen, str(chosen))


class OnnxInt8Contestant(SentenceTransformersContestant):
    """sentence-transformers with its onnx backend and the int8 file that its docs have one make."""

    packages = (*SentenceTransformersContestant.packages, "optimum-onnx", "onnxruntime")

    def _construct(self, folder: Path, cache_dir: Path, threads: int) -> Any:
        exported = cache_dir / "exported"
        flags = Machine().read("/proc/cpuinfo")
        kind = next(kind for flag, kind in _ONNX_FILES if flag in flags)
        if not exported.is_dir():
            self._quantize(folder, exported, kind)
        # Its name tells how activations are quantized: quint8 for AVX2, qint8 elsewhere.
        quantized = next((exported / "onnx").glob(f"model_*int8_{kind}.onnx"))
        session = import_module("onnxruntime").SessionOptions()
        session.intra_op_num_threads = threads
        return self._make(
            exported,
            backend="onnx",
            model_kwargs={
                "file_name": f"onnx/{quantized.name}",
                "provider": "CPUExecutionProvider",
                "session_options": session,
            },
        )

    def _quantize(self, folder: Path, exported: Path, kind: str) -> None:
        from sentence_transformers import export_dynamic_quantized_onnx_model

        arguments = {"export": True, "provider": "CPUExecutionProvider"}
        model = self._make(folder, backend="onnx", model_kwargs=arguments)
        # Some releases leave out files that loading asks for.
        shutil.copytree(folder, exported, ignore=shutil.ignore_patterns("*.safetensors"))
        model.save_pretrained(str(exported))
        export_dynamic_quantized_onnx_model(model, kind, str(exported))

    def precision(self) -> str:
        """Return int8."""
        return "int8"

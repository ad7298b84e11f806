"""A seeded model as files, for those who read a folder: peers, the reference, the second start."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from embedlib.models.families.table import FAMILIES
from embedlib.models.weights.tensor_roles import encoder_shapes, tensor_name
from embedlib.models.weights.weight_files import WEIGHTS_NAME
from tests.acceptance.gpu.models import Shape
from tests.acceptance.gpu.seeded import SeededWeights
from tests.acceptance.gpu.texts import id_tokenizer

SHARED_MEMORY: Final = Path("/dev/shm")
_MODULES: Final = "sentence_transformers.models."
BYTES_PER_NUMBER: Final = 2


def roomy_place(num_bytes: int) -> Path:
    """Return where so much can be written, in memory if it has the room.

    Raises:
        OSError: nowhere.
    """
    places = [SHARED_MEMORY, Path(tempfile.gettempdir())]
    for place in places:
        if place.is_dir() and shutil.disk_usage(place).free > num_bytes:
            return place
    raise OSError(
        f"{num_bytes / 1e9:.1f} GB are needed in {' or '.join(map(str, places))}; set TMPDIR"
    )


def weight_bytes(shape: Shape) -> int:
    """Return the size of a model's weights in bfloat16."""
    shapes = encoder_shapes(shape.spec.encoder).values()
    return BYTES_PER_NUMBER * sum(math.prod(size) for size in shapes)


def write_model(folder: Path, shape: Shape, device: torch.device) -> None:
    """Write a model as sentence-transformers would, in bfloat16.

    The numbers are those that `SeededWeights` makes on this device.
    """
    pooling_dir = folder / "1_Pooling"
    pooling_dir.mkdir(parents=True)
    dim = shape.config["hidden_size"]
    _write_json(folder / "config.json", {**shape.config, "dtype": "bfloat16"})
    modules = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    listed = [
        {"idx": place, "name": str(place), "path": path, "type": _MODULES + kind}
        for place, (kind, path) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listed)
    flag = {"cls": "pooling_mode_cls_token", "last_token": "pooling_mode_lasttoken"}[shape.pooling]
    modes = {"pooling_mode_mean_tokens": False, flag: True}
    _write_json(pooling_dir / "config.json", {"word_embedding_dimension": dim, **modes})
    settings = {"max_seq_length": shape.max_seq_tokens, "do_lower_case": False}
    _write_json(folder / "sentence_bert_config.json", settings)
    id_tokenizer(shape.config["vocab_size"]).save(str(folder / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "0", "unk_token": "0"}
    _write_json(folder / "tokenizer_config.json", tokenizer)
    _write_weights(folder / WEIGHTS_NAME, shape, SeededWeights(shape, device))


def _write_weights(path: Path, shape: Shape, weights: SeededWeights) -> None:
    """Write tensor by tensor; the layout is that of `models.safetensors_files`."""
    encoder = shape.spec.encoder
    family = FAMILIES[encoder.family]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for role, size in encoder_shapes(encoder).items():
        end = start + BYTES_PER_NUMBER * math.prod(size)
        name = tensor_name(role, family)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for role in weights:
            # numpy has no bfloat16; its bytes it can write.
            weights[role].view(torch.int16).cpu().numpy().tofile(file)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

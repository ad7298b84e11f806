"""Reads a static model: a table with a row for every token, and no transformer.

There are two layouts. sentence-transformers writes modules.json with a StaticEmbedding; model2vec
writes config.json. A folder with both is read by modules.json, as `SentenceTransformer` reads it:
it keeps unknown tokens and every length, where model2vec drops and cuts.

Source: `StaticEmbedding` of sentence-transformers 6.2; `StaticModel` of model2vec 0.10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from embedlib.models.reading.files import ModelFiles
from embedlib.models.reading.general_file import read_general
from embedlib.models.reading.json_files import JsonObject
from embedlib.models.reading.module_files import load_config, output_dim, read_module
from embedlib.models.reading.module_list import read_module_list
from embedlib.models.reading.tokenizer_json import TokenizerJson
from embedlib.models.spec import Encoder, ModelSpec, Module, Normalize, Pooling
from embedlib.models.weights.table import find_table
from embedlib.models.weights.weight_files import WEIGHTS_NAME, weight_files

MODEL2VEC: Final = "model2vec"
NO_LIMIT: Final = 2**31 - 1
"""Tokens of a text: a batch counts them in 32 bits."""
MEAN: Final = Pooling(modes=("mean",))
MAX_LENGTH: Final = 512
"""Tokens of a text, if model2vec's file does not say."""
CONFIG_KEYS: Final = frozenset(
    {
        "normalize", "max_length",
        # How the table was made, and what it is like; none of it changes a vector.
        "model_type", "architectures", "tokenizer_name", "apply_pca", "apply_zipf",
        "sif_coefficient", "hidden_dim", "seq_length", "pooling", "embedding_dtype",
        "vocabulary_quantization",
    }
)  # fmt: skip
"""Of model2vec's config.json."""


def read_static(folder: Path) -> ModelFiles:
    """Return the files of a folder that sentence-transformers wrote.

    Raises:
        ModelError: a file holds something that is not implemented, or the table cannot be read.
    """
    (_, table_dir), *entries = read_module_list(folder, with_head=False)
    weight_files(table_dir, folder)  # of none it says what there is, and what to do with a pickle
    table = find_table(table_dir / WEIGHTS_NAME, folder)
    dim = table.shape[1]
    modules: list[Module] = [MEAN]
    for kind, path in entries:
        config = load_config(kind, path, folder)
        modules.append(read_module(kind, config, dim))
        dim = output_dim(modules[-1], dim)
    general = JsonObject.load(folder / "config_sentence_transformers.json", folder)
    limit, source = _truncation(table_dir, folder)
    spec = ModelSpec(
        encoder=table_encoder(*table.shape),
        modules=tuple(modules),
        embedding_dim=dim,
        max_seq_tokens=limit,
        max_seq_tokens_source=source,
        **read_general(general, dim),
    )
    return ModelFiles(
        folder=folder,
        spec=spec,
        transformer_dir=table_dir,
        module_dirs=(table_dir, *(path for _, path in entries)),
    )


def _truncation(table_dir: Path, folder: Path) -> tuple[int, str]:
    """Return the length limit, and what sets it.

    Source: `StaticEmbedding.__init__` of sentence-transformers 6.2, which leaves the truncation
    that tokenizer.json was saved with.
    """
    read = TokenizerJson.load(table_dir / "tokenizer.json", folder)
    length = read.saved_length()
    if length is None:
        return NO_LIMIT, "modules.json: StaticEmbedding"
    return length, f"{read.name}: truncation"


def read_model2vec(folder: Path) -> ModelFiles:
    """Return the files of a folder that model2vec wrote.

    Raises:
        ModelError: as in `read_static`.
    """
    config = JsonObject.load(folder / "config.json", folder)
    config.check_keys(CONFIG_KEYS)
    table = find_table(folder / WEIGHTS_NAME, folder)
    tokenizer = TokenizerJson.load(folder / "tokenizer.json", folder)
    unknown = getattr(tokenizer.tokenizer.model, "unk_token", None)
    limit = config.optional_integer("max_length", MAX_LENGTH)
    modules = (MEAN, *((Normalize(),) if config.boolean("normalize", False) else ()))
    spec = ModelSpec(
        encoder=table_encoder(*table.shape),
        modules=modules,
        embedding_dim=table.shape[1],
        max_seq_tokens=NO_LIMIT if limit is None else limit,
        max_seq_tokens_source=f"{config.name}: max_length",
        dropped_token_id=None if unknown is None else tokenizer.tokenizer.token_to_id(unknown),
    )
    return ModelFiles(
        folder=folder, spec=spec, transformer_dir=folder, module_dirs=(folder,) * len(modules)
    )


def table_encoder(num_tokens: int, dim: int) -> Encoder:
    """Return a transformer without layers: what a model of a table alone is."""
    return Encoder(
        family="static",
        vocab_size=num_tokens,
        hidden_size=dim,
        num_layers=0,
        num_heads=1,
        num_kv_heads=1,
        head_dim=dim,
        intermediate_size=1,
        activation="identity",
        is_gated=False,
        norm="layer_norm",
        norm_eps=1.0,
        norm_placement="post",
        num_positions=NO_LIMIT,
        windows=(),
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        has_down_bias=False,
    )

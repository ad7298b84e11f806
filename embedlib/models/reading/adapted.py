"""Models with an adapter for each task: how their folders say so, and what they are with one.

Source: config.json, custom_st.py and modeling_jina_embeddings_v5.py of
huggingface.co/jinaai/jina-embeddings-v5-text-nano; config.json of jinaai/jina-embeddings-v3-hf;
modeling_lora.py of jinaai/xlm-roberta-flash-implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from embedlib.errors import ConfigError, ModelUnsupportedError
from embedlib.models.families.row import FusedSlice
from embedlib.models.reading.json_files import JsonObject, show
from embedlib.models.reading.model_file import is_file_name

Json = dict[str, Any]

_V3_MODULES: Final = {
    "self_attn.q_proj": FusedSlice("mixer.Wqkv", 0, 3),
    "self_attn.k_proj": FusedSlice("mixer.Wqkv", 1, 3),
    "self_attn.v_proj": FusedSlice("mixer.Wqkv", 2, 3),
    "self_attn.o_proj": FusedSlice("mixer.out_proj"),
}
"""Modules of the class in transformers that its files name otherwise: see its
conversion_mapping.py."""
_V3_ROLES: Final = {"retrieval.query": "query", "retrieval.passage": "document"}
"""What sentence-transformers calls the prompt of a task."""


@dataclass(frozen=True, kw_only=True)
class AdaptedModel:
    """One kind of model with adapters."""

    own_class: str
    """That of `auto_map`, without its file."""
    model_type: str
    """Without code of its own, this one and `tasks_key` say it."""
    tasks_key: str
    """The key of config.json with the names of the tasks."""
    directory: Callable[[str], str]
    """Returns where the adapter of a task is, if it has a folder of its own."""
    base: Callable[[JsonObject, Collection[str]], Json]
    """Returns the config.json of the model with an adapter; takes the tensors' names, too."""
    stored: Callable[[str], FusedSlice | None]
    """Returns where a file has the matrix of a module of the class; None: it is not used."""
    pooling: str
    """`pooling_mode` of the model."""
    general: Callable[[JsonObject, str], Json | None]
    """Returns config_sentence_transformers.json for a task; None: that of the folder."""
    ends_at_positions: bool = False
    """True: whatever the tokenizer says, texts end at `max_position_embeddings`."""

    def tasks(self, config: JsonObject) -> list[str]:
        """Return the names of the tasks.

        Raises:
            ModelUnsupportedError: config.json has none.
        """
        names = config.values.get(self.tasks_key)
        # A task may have a folder of its name.
        if not isinstance(names, list) or not all(
            isinstance(name, str) and is_file_name(name) for name in names
        ):
            raise config.refuse(self.tasks_key, "a list of names")
        return names

    def check_task(self, config: JsonObject, task: str) -> int:
        """Return the place of a task among those of the model.

        Raises:
            ConfigError: it has none of that name.
        """
        names = self.tasks(config)
        if task not in names:
            raise ConfigError(f"--adapter {task}: is none of the model's: {', '.join(names)}")
        return names.index(task)


def _without(config: JsonObject, keys: Collection[str]) -> Json:
    return {key: value for key, value in config.values.items() if key not in keys}


def _v5_base(config: JsonObject, names: Collection[str]) -> Json:
    """Return the config.json of a v5: a Qwen3 (small) or a EuroBERT (nano)."""
    has_norms = any(name.endswith("layers.0.self_attn.q_norm.weight") for name in names)
    kind = ("qwen3", "Qwen3Model") if has_norms else ("eurobert", "EuroBertModel")
    kept = _without(config, {"auto_map", "task_names"})
    return {**kept, "model_type": kind[0], "architectures": [kind[1]]}


def _v3_base(config: JsonObject, names: Collection[str]) -> Json:
    """Return the config.json of a v3, in the keys of transformers."""
    del names
    config.check_fixed("position_embedding_type", ("rotary", None))
    config.check_fixed("emb_pooler", (None,))
    config.check_fixed("truncate_dim", (None,))
    config.check_fixed("load_trained_adapters", (True, None))
    lora = ("adaptations", "alpha", "dropout_p", "main_params_trainable", "rank")
    kept = _without(
        config,
        {
            *(f"lora_{key}" for key in lora), "auto_map", "task_instructions", "rotary_emb_base",
            "position_embedding_type", "emb_pooler", "truncate_dim", "load_trained_adapters",
            "rope_parameters",
        },
    )  # fmt: skip
    rope = config.child("rope_parameters")
    theta = config.number("rotary_emb_base", rope.number("rope_theta", 20_000.0))
    return {
        **kept,
        "model_type": "jina_embeddings_v3",
        "architectures": ["JinaEmbeddingsV3Model"],
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


def _v3_stored(module: str) -> FusedSlice | None:
    """Return where a v3's file has a module of transformers' class."""
    if module.startswith("pooler."):
        return None
    parts = module.split(".", 2)
    if parts[0] != "layers" or len(parts) < 3:
        return FusedSlice(module)
    place = _V3_MODULES.get(parts[2], FusedSlice(parts[2]))
    return FusedSlice(f"encoder.layers.{parts[1]}.{place.name}", place.index, place.count)


def _v3_general(config: JsonObject, task: str) -> Json:
    """Return the instruction of a task as the default prompt, as `encode` of its class adds it."""
    instruction = config.child("task_instructions").text(task)
    if not instruction:
        return {}
    name = _V3_ROLES.get(task, task)
    return {"prompts": {name: instruction}, "default_prompt_name": name}


ADAPTED_MODELS: Final[tuple[AdaptedModel, ...]] = (
    AdaptedModel(
        own_class="JinaEmbeddingsV5Model",
        model_type="jina_embeddings_v5",
        tasks_key="task_names",
        directory=lambda task: f"adapters/{task}",
        base=_v5_base,
        stored=FusedSlice,
        pooling="lasttoken",
        general=lambda config, task: None,
        ends_at_positions=True,
    ),
    AdaptedModel(
        own_class="XLMRobertaLoRA",
        model_type="jina_embeddings_v3",
        tasks_key="lora_adaptations",
        directory=lambda task: task.replace(".", "_").replace("-", "_"),
        base=_v3_base,
        stored=_v3_stored,
        pooling="mean",
        general=_v3_general,
    ),
)
"""All kinds."""


def find_adapted(config: JsonObject) -> AdaptedModel | None:
    """Return the kind of a model with adapters; None: config.json is not that of one."""
    own = config.child("auto_map").text("AutoModel") or ""
    for model in ADAPTED_MODELS:
        is_native = config.text("model_type") == model.model_type and model.tasks_key in config
        if own.rpartition(".")[2] == model.own_class or (not own and is_native):
            return model
    return None


def check_not_adapted(folder: Path) -> None:
    """Reject a model with adapters, which is no model before one of them is chosen.

    Raises:
        ModelUnsupportedError: it is one.
    """
    config = JsonObject.load(folder / "config.json", folder)
    model = find_adapted(config)
    if model is not None:
        tasks = ", ".join(map(show, model.tasks(config)))
        raise ModelUnsupportedError(
            f"{folder} has an adapter for each task ({tasks}), one of which must be merged: "
            f"embedlib convert {folder} --adapter TASK --out NEW_FOLDER; then load that folder"
        )


def files_of(model: AdaptedModel, config: JsonObject) -> Mapping[str, Json | list[Json]]:
    """Return modules.json and the settings of the modules, by their names in the folder."""
    kind = "sentence_transformers.models."
    files: dict[str, Json | list[Json]] = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{kind}Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kind}Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{kind}Normalize"},
        ],
        "1_Pooling/config.json": {
            "embedding_dimension": config.integer("hidden_size"),
            "pooling_mode": model.pooling,
            "include_prompt": True,
        },
    }
    if model.ends_at_positions:
        limit = config.integer("max_position_embeddings")
        files["sentence_bert_config.json"] = {"max_seq_length": limit}
    return files

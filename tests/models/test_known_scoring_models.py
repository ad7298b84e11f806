"""Configuration files of published rerankers, reward models and classifiers.

Retyped as in test_known_models.py; keys that do not affect scores are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from embedlib.errors import ModelUnsupportedError
from embedlib.models.encoder_parts import Rope
from embedlib.models.families.row import Family
from embedlib.models.families.table import FAMILIES
from embedlib.models.known_rerankers import known_reranker, template_of
from embedlib.models.reading.config_keys import HARMLESS_KEYS
from embedlib.models.reading.files import ModelFiles, read_model_files
from embedlib.models.reading.head_modules import AnswerRows
from embedlib.models.spec import Dense, Head, Pooling

Json = dict[str, Any]

ONE_LABEL: Json = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}

# Source: huggingface.co/BAAI/bge-reranker-v2-m3, config.json at c4b98d2; the length is the
# tokenizer's.
BGE_RERANKER_V2_M3: Json = {
    "architectures": ["XLMRobertaForSequenceClassification"],
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8194,
    "model_type": "xlm-roberta",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "type_vocab_size": 1,
    "vocab_size": 250002,
    **ONE_LABEL,
}

# Source: huggingface.co/ncbi/MedCPT-Cross-Encoder, config.json at 881eeac.
MEDCPT: Json = {
    "architectures": ["BertForSequenceClassification"],
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
    **ONE_LABEL,
}

# Source: huggingface.co/SamLowe/roberta-base-go_emotions, config.json; the labels are those of the
# data set GoEmotions.
EMOTIONS = (
    "admiration", "amusement", "anger", "annoyance", "approval", "caring", "confusion", "curiosity",
    "desire", "disappointment", "disapproval", "disgust", "embarrassment", "excitement", "fear",
    "gratitude", "grief", "joy", "love", "nervousness", "optimism", "pride", "realization",
    "relief", "remorse", "sadness", "surprise", "neutral",
)  # fmt: skip
GO_EMOTIONS: Json = {
    "architectures": ["RobertaForSequenceClassification"],
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "id2label": {str(index): name for index, name in enumerate(EMOTIONS)},
    "label2id": {name: index for index, name in enumerate(EMOTIONS)},
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "problem_type": "multi_label_classification",
    "type_vocab_size": 1,
    "vocab_size": 50265,
}

# Source: huggingface.co/Skywork/Skywork-Reward-Llama-3.1-8B, config.json; v0.2 and
# allenai/Llama-3.1-Tulu-3-8B-RM are the same class on the same transformer.
SKYWORK_LLAMA: Json = {
    "architectures": ["LlamaForSequenceClassification"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pad_token_id": 128256,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "use_cache": False,
    "vocab_size": 128257,
    **ONE_LABEL,
}

# Source: huggingface.co/Skywork/Skywork-Reward-Gemma-2-27B, config.json at 776a27d.
SKYWORK_GEMMA: Json = {
    "architectures": ["Gemma2ForSequenceClassification"],
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 128,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 4608,
    "intermediate_size": 36864,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 32,
    "num_hidden_layers": 46,
    "num_key_value_heads": 16,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 144,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "vocab_size": 256000,
    **ONE_LABEL,
}

# Source: the configuration of huggingface.co/Qwen/Qwen3-0.6B, which Qwen3-Reranker-0.6B is a
# fine-tune of.
QWEN3_RERANKER: Json = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

# Source: the configuration of huggingface.co/Qwen/Qwen2.5-1.5B, which mxbai-rerank-large-v2 is
# trained from, and the length that mxbai-rerank gives it; -seq has a head for one label. mteb,
# mteb/models/model_implementations/mixedbread_ai_models.py, has 1543714304 parameters, 233373696 of
# them in the embedding, and 32768 tokens: these sizes and this vocabulary give the same numbers.
MXBAI_RERANK_LARGE: Json = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

# Source: huggingface.co/cross-encoder/ms-marco-MiniLM-L6-v2, config.json, which
# sentence-transformers 4 saved with the activation under a key that was new then.
MS_MARCO_MINILM: Json = {
    "architectures": ["BertForSequenceClassification"],
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "sentence_transformers": {
        "activation_fn": "torch.nn.modules.linear.Identity",
        "version": "4.1.0.dev0",
    },
    "type_vocab_size": 2,
    "vocab_size": 30522,
    **ONE_LABEL,
}

# allenai/Llama-3.1-Tulu-3-8B-RM, whose config.json was not read. Source: allenai/open-instruct. By
# docs/tulu3.md it is trained from Llama-3.1-Tulu-3-8B-SFT with open_instruct/reward_modeling.py, a
# head for one label; open_instruct/test_data/tokenizer at 689ed62 has the configuration that stands
# for that model in tests. Only pad_token_id is from memory: it is null there, and the training
# at bdc3fa6 sets none.
TULU_RM: Json = SKYWORK_LLAMA | {
    "eos_token_id": 128001,
    "pad_token_id": 128256,
    "use_cache": True,
    "vocab_size": 128264,
}

# Source: huggingface.co/Alibaba-NLP/gte-multilingual-reranker-base: the class and the sizes of
# gte-multilingual-base.
GTE_RERANKER: Json = {
    "architectures": ["NewForSequenceClassification"],
    "auto_map": {
        "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
        "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel",
        "AutoModelForSequenceClassification": (
            "Alibaba-NLP/new-impl--modeling.NewForSequenceClassification"
        ),
    },
    "classifier_dropout": 0.0,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 8192,
    "model_type": "new",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pack_qkv": True,
    "pad_token_id": 1,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
    "vocab_size": 250048,
    **ONE_LABEL,
}


def _read(
    folder: Path, config: Json, tokenizer_config: Json, template: str | None = None
) -> ModelFiles:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return read_model_files(folder, with_head=True, template=template)


def _one_score(**fields: Any) -> Head:
    return Head(labels=("LABEL_0",), activation="sigmoid", **{"has_token_types": False, **fields})


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "max_seq_tokens", "head"),
    [
        (
            BGE_RERANKER_V2_M3,
            {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 8192},
            8192,
            _one_score(),
        ),
        (
            MEDCPT,
            {"tokenizer_class": "BertTokenizer", "model_max_length": 10**30},
            512,
            _one_score(has_token_types=True),
        ),
        (
            GO_EMOTIONS,
            {"tokenizer_class": "RobertaTokenizer", "model_max_length": 512},
            512,
            Head(
                labels=EMOTIONS,
                activation="sigmoid",
                reranker_activation="identity",
                has_token_types=False,
            ),
        ),
        (
            SKYWORK_LLAMA,
            {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072},
            131072,
            _one_score(),
        ),
        (SKYWORK_GEMMA, {"tokenizer_class": "GemmaTokenizer"}, 8192, _one_score()),
        (
            # Callers apply its chat template themselves; a Reranker rejects the model.
            TULU_RM,
            {"model_max_length": 131072, "chat_template": "{{ messages }}"},
            131072,
            _one_score(has_chat_template=True),
        ),
        (
            MS_MARCO_MINILM,
            {"tokenizer_class": "BertTokenizer", "model_max_length": 512},
            512,
            _one_score(reranker_activation="identity", has_token_types=True),
        ),
        (
            GTE_RERANKER,
            {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 8192},
            8192,
            _one_score(),
        ),
    ],
    ids=[
        *("bge-reranker-v2-m3", "medcpt", "go_emotions", "skywork-llama", "skywork-gemma"),
        *("tulu-rm", "ms-marco-minilm", "gte-reranker"),
    ],
)
def test_what_the_files_promise(
    tmp_path: Path, config: Json, tokenizer_config: Json, max_seq_tokens: int, head: Head
) -> None:
    files = _read(tmp_path, config, tokenizer_config)
    assert files.spec.head == head
    assert files.spec.max_seq_tokens == max_seq_tokens
    assert files.spec.embedding_dim == len(head.labels)


def test_a_reward_model_scores_the_last_token(tmp_path: Path) -> None:
    spec = _read(tmp_path, SKYWORK_LLAMA, {}).spec
    assert spec.encoder.rope == Rope(
        kind="llama3", theta=500_000.0, factor=8.0, original_max_positions=8192
    )
    assert spec.modules == (
        Pooling(modes=("last_token",), skipped_token_id=128256),
        Dense(in_features=4096, out_features=1, has_bias=False, activation="identity"),
    )


def test_qwen3_reranker(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"no": 2152, "yes": 9693, "?": 0}, unk_token="?"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    files = _read(tmp_path, QWEN3_RERANKER, {"model_max_length": 131072}, template="qwen3-reranker")
    assert files.spec.max_seq_tokens == 40960
    assert files.module_tensors == {1: AnswerRows(None, 9693, 2152)}
    assert files.spec.head == _one_score(template=known_reranker("qwen3-reranker").template)


def test_qwen3_reranker_with_a_head_of_its_own(tmp_path: Path) -> None:
    config = (
        QWEN3_RERANKER
        | ONE_LABEL
        | {
            "architectures": ["Qwen3ForSequenceClassification"],
            "pad_token_id": 151643,
        }
    )
    files = _read(tmp_path, config, {}, template="qwen3-reranker")
    assert files.module_tensors == {1: "score"}
    assert files.spec.head == _one_score(template=known_reranker("qwen3-reranker").template)


# The tokenizer of Qwen2.5 has a chat template, and no file names a prompt template.
QWEN_CHAT: Json = {"chat_template": "{{ messages }}", "model_max_length": 32768}


@pytest.mark.parametrize("name", ["mixedbread-ai/mxbai-rerank-large-v2", None])
def test_mxbai_rerank(name: str | None, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"0": 15, "1": 16, "?": 0}, unk_token="?"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if name is None:
        with pytest.raises(ModelUnsupportedError, match="scores with the logits of two tokens"):
            _read(tmp_path, MXBAI_RERANK_LARGE, QWEN_CHAT)
        return
    files = _read(tmp_path, MXBAI_RERANK_LARGE, QWEN_CHAT, template=template_of(name))
    assert files.spec.max_seq_tokens == 32768
    assert files.module_tensors == {1: AnswerRows(None, 16, 15)}
    template = known_reranker("mxbai-rerank-v2").template
    assert template.lines_apart
    assert files.spec.head == _one_score(template=template, has_chat_template=True)
    assert set(files.spec.encoder.windows) == {None}


def test_mxbai_rerank_with_a_head_of_its_own(tmp_path: Path) -> None:
    config = (
        MXBAI_RERANK_LARGE
        | ONE_LABEL
        | {"architectures": ["Qwen2ForSequenceClassification"], "pad_token_id": 151643}
    )
    template = template_of("michaelfeil/mxbai-rerank-large-v2-seq")
    files = _read(tmp_path, config, QWEN_CHAT, template=template)
    assert files.module_tensors == {1: "score"}
    head = files.spec.head
    assert head is not None
    assert head.template == known_reranker("mxbai-rerank-v2").template
    # Without the name, the spec has no template, only the mark of an unused chat template.
    plain = _read(tmp_path, config, QWEN_CHAT).spec.head
    assert plain is not None
    assert (plain.template, plain.has_chat_template) == (None, True)


CONFIGS = {
    "qwen3-reranker": QWEN3_RERANKER
    | ONE_LABEL
    | {"architectures": ["Qwen3ForSequenceClassification"]},
    "mxbai-rerank": MXBAI_RERANK_LARGE
    | ONE_LABEL
    | {"architectures": ["Qwen2ForSequenceClassification"]},
    "bge-reranker-v2-m3": BGE_RERANKER_V2_M3,
    "medcpt": MEDCPT,
    "go_emotions": GO_EMOTIONS,
    "skywork-llama": SKYWORK_LLAMA,
    "tulu-rm": TULU_RM,
    "ms-marco-minilm": MS_MARCO_MINILM,
    "gte-reranker": GTE_RERANKER,
}
IDLE = HARMLESS_KEYS - {
    *("model_type", "architectures", "id2label", "num_labels", "problem_type"),
    *("pad_token_id", "sentence_transformers", "sbert_ce_default_activation_function"),
}
"""Keys that do not affect scores either."""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_wrong_guess_is_impossible(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    family = FAMILIES[config["model_type"]]
    # Classes of other families find the last token by length, not by pad_token_id.
    idle = IDLE | family.harmless | (set() if _pads(family) else {"pad_token_id"})
    tokenizer_config = {"model_input_names": ["input_ids"]}
    if "use_sliding_window" in config:  # off: no single key has an effect
        idle |= {"max_window_layers", "sliding_window", "use_sliding_window"}
    right = _read(tmp_path, config, tokenizer_config).spec
    tried = 0
    for key in config.keys() - idle:
        tried += 1
        try:
            spec = _read(tmp_path, config | {key: _changed(config[key])}, tokenizer_config).spec
        except ModelUnsupportedError:
            continue
        assert spec != right, f"nothing noticed another {key}"
    assert tried > 10


def _pads(family: Family) -> bool:
    head = family.sequence_head
    skips = head is not None and head.skipped_token is not None
    return skips or family.positions == "learned_after_padding"


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return ["another"]
    return {"another": "one"} if isinstance(value, dict) else "another"

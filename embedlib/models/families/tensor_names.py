"""The families' tensor names, by role; `weights/tensor_roles.py` lists the roles.

A table that builds on another may name roles that its family does not have.

Source: the parameters of the classes in transformers 5.5, models/<family>/modeling_<family>.py.
"""

from __future__ import annotations

from typing import Final

from embedlib.models.families.row import FusedSlice, TensorNames


def _fused(name: str, *roles: str) -> TensorNames:
    """Return the roles of a layer that one stored tensor holds, as equal blocks of its rows."""
    count = len(roles)
    return {f"layers.{{i}}.{role}": FusedSlice(name, i, count) for i, role in enumerate(roles)}


ENCODER_TENSORS: Final[TensorNames] = {
    "tokens": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "token_types": "embeddings.token_type_embeddings.weight",
    "task_types": "embeddings.task_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm",
    "embedding_projection": "embeddings_project",
    "layers.{i}.q": "encoder.layer.{i}.attention.self.query",
    "layers.{i}.k": "encoder.layer.{i}.attention.self.key",
    "layers.{i}.v": "encoder.layer.{i}.attention.self.value",
    "layers.{i}.o": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.mlp_norm": "encoder.layer.{i}.output.LayerNorm",
}
XLM_ROBERTA_XL_TENSORS: Final[TensorNames] = {
    **ENCODER_TENSORS,
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.self_attn_layer_norm",
    "layers.{i}.mlp_norm": "encoder.layer.{i}.LayerNorm",
    "final_norm": "encoder.LayerNorm",
}
DECODER_TENSORS: Final[TensorNames] = {
    "tokens": "embed_tokens.weight",
    "layers.{i}.q": "layers.{i}.self_attn.q_proj",
    "layers.{i}.k": "layers.{i}.self_attn.k_proj",
    "layers.{i}.v": "layers.{i}.self_attn.v_proj",
    "layers.{i}.o": "layers.{i}.self_attn.o_proj",
    "layers.{i}.q_norm": "layers.{i}.self_attn.q_norm",
    "layers.{i}.k_norm": "layers.{i}.self_attn.k_norm",
    "layers.{i}.attention_norm": "layers.{i}.input_layernorm",
    "layers.{i}.gate": "layers.{i}.mlp.gate_proj",
    "layers.{i}.up": "layers.{i}.mlp.up_proj",
    "layers.{i}.down": "layers.{i}.mlp.down_proj",
    "layers.{i}.mlp_norm": "layers.{i}.post_attention_layernorm",
    "final_norm": "norm",
}

DEBERTA_V2_TENSORS: Final[TensorNames] = {
    **ENCODER_TENSORS,
    "relative": "encoder.rel_embeddings.weight",
    "relative_norm": "encoder.LayerNorm",
    "layers.{i}.q": "encoder.layer.{i}.attention.self.query_proj",
    "layers.{i}.k": "encoder.layer.{i}.attention.self.key_proj",
    "layers.{i}.v": "encoder.layer.{i}.attention.self.value_proj",
}
_ALBERT_LAYER: Final = "encoder.albert_layer_groups.0.albert_layers.0"
ALBERT_TENSORS: Final[TensorNames] = {
    **ENCODER_TENSORS,
    "embedding_projection": "encoder.embedding_hidden_mapping_in",
    "layers.{i}.q": f"{_ALBERT_LAYER}.attention.query",
    "layers.{i}.k": f"{_ALBERT_LAYER}.attention.key",
    "layers.{i}.v": f"{_ALBERT_LAYER}.attention.value",
    "layers.{i}.o": f"{_ALBERT_LAYER}.attention.dense",
    "layers.{i}.attention_norm": f"{_ALBERT_LAYER}.attention.LayerNorm",
    "layers.{i}.up": f"{_ALBERT_LAYER}.ffn",
    "layers.{i}.down": f"{_ALBERT_LAYER}.ffn_output",
    "layers.{i}.mlp_norm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
}
DISTILBERT_TENSORS: Final[TensorNames] = {
    **ENCODER_TENSORS,
    "layers.{i}.q": "transformer.layer.{i}.attention.q_lin",
    "layers.{i}.k": "transformer.layer.{i}.attention.k_lin",
    "layers.{i}.v": "transformer.layer.{i}.attention.v_lin",
    "layers.{i}.o": "transformer.layer.{i}.attention.out_lin",
    "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "layers.{i}.up": "transformer.layer.{i}.ffn.lin1",
    "layers.{i}.down": "transformer.layer.{i}.ffn.lin2",
    "layers.{i}.mlp_norm": "transformer.layer.{i}.output_layer_norm",
}

MPNET_TENSORS: Final[TensorNames] = {
    **ENCODER_TENSORS,
    "position_bias": "encoder.relative_attention_bias.weight",
    "layers.{i}.q": "encoder.layer.{i}.attention.attn.q",
    "layers.{i}.k": "encoder.layer.{i}.attention.attn.k",
    "layers.{i}.v": "encoder.layer.{i}.attention.attn.v",
    "layers.{i}.o": "encoder.layer.{i}.attention.attn.o",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
}
T5_TENSORS: Final[TensorNames] = {
    "tokens": "shared.weight",
    "position_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "layers.{i}.q": "encoder.block.{i}.layer.0.SelfAttention.q",
    "layers.{i}.k": "encoder.block.{i}.layer.0.SelfAttention.k",
    "layers.{i}.v": "encoder.block.{i}.layer.0.SelfAttention.v",
    "layers.{i}.o": "encoder.block.{i}.layer.0.SelfAttention.o",
    "layers.{i}.attention_norm": "encoder.block.{i}.layer.0.layer_norm",
    "layers.{i}.up": "encoder.block.{i}.layer.1.DenseReluDense.wi",
    "layers.{i}.down": "encoder.block.{i}.layer.1.DenseReluDense.wo",
    "layers.{i}.mlp_norm": "encoder.block.{i}.layer.1.layer_norm",
    "final_norm": "encoder.final_layer_norm",
}
T5_GATED_TENSORS: Final[TensorNames] = {
    **T5_TENSORS,
    "layers.{i}.gate": "encoder.block.{i}.layer.1.DenseReluDense.wi_0",
    "layers.{i}.up": "encoder.block.{i}.layer.1.DenseReluDense.wi_1",
}
# Source: JinaBertModel of huggingface.co/jinaai/jina-bert-implementation, modeling_bert.py, and
# text-embeddings-inference, backends/candle/src/models/jina.rs, for the halves of gated_layers.
JINA_BERT_TENSORS: Final[TensorNames] = {
    **ENCODER_TENSORS,
    **_fused("encoder.layer.{i}.mlp.gated_layers", "gate", "up"),
    "layers.{i}.down": "encoder.layer.{i}.mlp.wo",
    "layers.{i}.mlp_norm": "encoder.layer.{i}.mlp.layernorm",
}
# Its halves of up_gated_layer stand the other way round. Source: see JINA_CODE.
JINA_CODE_TENSORS: Final[TensorNames] = {
    **JINA_BERT_TENSORS,
    "layers.{i}.q_norm": "encoder.layer.{i}.attention.self.layer_norm_q",
    "layers.{i}.k_norm": "encoder.layer.{i}.attention.self.layer_norm_k",
    "layers.{i}.attention_out_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.attention_norm": "encoder.layer.{i}.layer_norm_1",
    **_fused("encoder.layer.{i}.mlp.up_gated_layer", "up", "gate"),
    "layers.{i}.down": "encoder.layer.{i}.mlp.down_layer",
    "layers.{i}.mlp_norm": "encoder.layer.{i}.layer_norm_2",
}
MODERNBERT_TENSORS: Final[TensorNames] = {
    "tokens": "embeddings.tok_embeddings.weight",
    "embedding_norm": "embeddings.norm",
    **_fused("layers.{i}.attn.Wqkv", "q", "k", "v"),
    "layers.{i}.o": "layers.{i}.attn.Wo",
    "layers.{i}.attention_norm": "layers.{i}.attn_norm",
    **_fused("layers.{i}.mlp.Wi", "gate", "up"),
    "layers.{i}.down": "layers.{i}.mlp.Wo",
    "layers.{i}.mlp_norm": "layers.{i}.mlp_norm",
    "final_norm": "final_norm",
}
# The names of the model's own code. transformers reads and writes them too, by its
# conversion_mapping.py, which also shows which of fc11 and fc12 is the gate.
NOMIC_BERT_TENSORS: Final[TensorNames] = {
    "tokens": "embeddings.word_embeddings.weight",
    "token_types": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "emb_ln",
    **_fused("encoder.layers.{i}.attn.Wqkv", "q", "k", "v"),
    "layers.{i}.o": "encoder.layers.{i}.attn.out_proj",
    "layers.{i}.attention_norm": "encoder.layers.{i}.norm1",
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc11",
    "layers.{i}.gate": "encoder.layers.{i}.mlp.fc12",
    "layers.{i}.down": "encoder.layers.{i}.mlp.fc2",
    "layers.{i}.mlp_norm": "encoder.layers.{i}.norm2",
}
# Source: text-embeddings-inference, backends/candle/src/models/nomic.rs.
NOMIC_MOE_TENSORS: Final[TensorNames] = {
    **NOMIC_BERT_TENSORS,
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc1",
    "layers.{i}.router": "encoder.layers.{i}.mlp.router.layer",
    "layers.{i}.experts_up.weight": "encoder.layers.{i}.mlp.experts.mlp.w1",
    "layers.{i}.experts_down.weight": "encoder.layers.{i}.mlp.experts.mlp.w2",
    "layers.{i}.experts_down.bias": "encoder.layers.{i}.mlp.experts.bias",
}
# The names of the model's own code, which transformers writes back.
JINA_EMBEDDINGS_V3_TENSORS: Final[TensorNames] = {
    **NOMIC_BERT_TENSORS,
    **_fused("encoder.layers.{i}.mixer.Wqkv", "q", "k", "v"),
    "layers.{i}.o": "encoder.layers.{i}.mixer.out_proj",
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc1",
}
# The same code with a table of positions. Source: `remap_state_dict`, which renames the tensors of
# an XLM-RoBERTa, in convert_roberta_weights_to_flash.py of
# huggingface.co/jinaai/xlm-roberta-flash-implementation.
XLM_ROBERTA_FLASH_TENSORS: Final[TensorNames] = {
    **JINA_EMBEDDINGS_V3_TENSORS,
    "positions": "embeddings.position_embeddings.weight",
}
# Source: modeling.py of huggingface.co/Alibaba-NLP/new-impl.
NEW_TENSORS: Final[TensorNames] = {
    **ENCODER_TENSORS,
    **_fused("encoder.layer.{i}.attention.qkv_proj", "q", "k", "v"),
    "layers.{i}.o": "encoder.layer.{i}.attention.o_proj",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attn_ln",
    **_fused("encoder.layer.{i}.mlp.up_gate_proj", "up", "gate"),
    "layers.{i}.down": "encoder.layer.{i}.mlp.down_proj",
    "layers.{i}.mlp_norm": "encoder.layer.{i}.mlp_ln",
}
GEMMA_TENSORS: Final[TensorNames] = {
    **DECODER_TENSORS,
    "layers.{i}.attention_out_norm": "layers.{i}.post_attention_layernorm",
    "layers.{i}.mlp_norm": "layers.{i}.pre_feedforward_layernorm",
    "layers.{i}.mlp_out_norm": "layers.{i}.post_feedforward_layernorm",
}
EMBEDDING_GEMMA2_TENSORS: Final[TensorNames] = {
    **GEMMA_TENSORS,
    "layer_inputs": "ple.per_layer_model_projection",
    "layer_inputs_norm": "ple.per_layer_projection_norm",
    "layers.{i}.input_gate": "layers.{i}.ple_block.per_layer_input_gate",
    "layers.{i}.input_projection": "layers.{i}.ple_block.per_layer_projection",
    "layers.{i}.input_norm": "layers.{i}.ple_block.post_per_layer_input_norm",
    "layers.{i}.scalar": "layers.{i}.layer_scalar",
}
LFM2_TENSORS: Final[TensorNames] = {
    "tokens": "embed_tokens.weight",
    "layers.{i}.q": "layers.{i}.self_attn.q_proj",
    "layers.{i}.k": "layers.{i}.self_attn.k_proj",
    "layers.{i}.v": "layers.{i}.self_attn.v_proj",
    "layers.{i}.o": "layers.{i}.self_attn.out_proj",
    "layers.{i}.q_norm": "layers.{i}.self_attn.q_layernorm",
    "layers.{i}.k_norm": "layers.{i}.self_attn.k_layernorm",
    "layers.{i}.conv_in": "layers.{i}.conv.in_proj",
    "layers.{i}.conv": "layers.{i}.conv.conv",
    "layers.{i}.conv_out": "layers.{i}.conv.out_proj",
    "layers.{i}.attention_norm": "layers.{i}.operator_norm",
    "layers.{i}.gate": "layers.{i}.feed_forward.w1",
    "layers.{i}.up": "layers.{i}.feed_forward.w3",
    "layers.{i}.down": "layers.{i}.feed_forward.w2",
    "layers.{i}.mlp_norm": "layers.{i}.ffn_norm",
    "final_norm": "embedding_norm",
}

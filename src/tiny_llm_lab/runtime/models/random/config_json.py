"""The `config.json` of a random checkpoint, and the sampling of its `generation_config.json`."""

from typing import Any

from tiny_llm_lab.runtime.models.random.shapes import CONV_KERNEL, DTYPES, END_OF_TEXT, IM_END, Shape


def config_json(shape: Shape) -> dict[str, Any]:
    """The `config.json` of a shape, as mlx-lm and transformers read it."""
    is_qwen2 = shape.model_type == "qwen2"
    architecture = _ARCHITECTURES[shape.model_type]
    config: dict[str, Any] = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": shape.model_type,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.inner,
        "hidden_act": "silu",
        "attention_bias": is_qwen2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": bool(shape.tied),
        "use_sliding_window": False,
        "torch_dtype": DTYPES.get(shape.bits, "bfloat16"),
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
    }
    if shape.experts:
        config |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.active,
            "moe_intermediate_size": shape.expert_inner,
            "norm_topk_prob": bool(shape.norm_topk),
            "decoder_sparse_step": shape.sparse_step,
            "mlp_only_layers": [],
        }
    if shape.is_hybrid:
        config |= _hybrid_json(shape)
    if shape.bits not in DTYPES:
        packing = {"group_size": shape.group, "bits": shape.bits, "mode": "affine"}
        config |= {"quantization": packing, "quantization_config": packing}
    return config


_ARCHITECTURES = {
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
    "qwen3_next": "Qwen3Next",
}


def sampling_json(shape: Shape) -> dict[str, Any]:
    """What the real model's `generation_config.json` asks for; {} for the shrunk ones, which stay greedy."""
    if shape.name.endswith("-shrunk"):
        return {}
    is_instruct = shape.model_type in ("qwen2", "qwen3_next")
    # Of Qwen3.5 what its model card recommends for thinking.
    warm = 0.7 if is_instruct else 1.0 if shape.model_type.startswith("qwen3_5") else 0.6
    drawn = {"do_sample": True, "temperature": warm, "top_k": 20, "top_p": 0.8 if is_instruct else 0.95}
    penalties = {"qwen2.5-0.5b": 1.1, "qwen2.5-7b": 1.05}
    return drawn | ({"repetition_penalty": penalties[shape.name]} if shape.name in penalties else {})


def _hybrid_json(shape: Shape) -> dict[str, Any]:
    """What a hybrid adds to a `config.json`; Qwen3.5's of text alone has a type of its own."""
    rotary = {"partial_rotary_factor": shape.rotary / shape.head_dim}
    theta = {"rope_theta": 10000000.0}
    is_next = shape.model_type == "qwen3_next"
    config = {
        "model_type": shape.model_type if is_next or shape.bits not in DTYPES else f"{shape.model_type}_text",
        "full_attention_interval": shape.interval,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.key_dim,
        "linear_value_head_dim": shape.value_dim,
        "linear_conv_kernel_dim": CONV_KERNEL,
        "attn_output_gate": True,
        "rope_parameters": {"rope_type": "default", **theta, **rotary},
        **theta,
    }
    if is_next:
        config |= rotary
    if shape.mtp:
        config |= {"mtp_num_hidden_layers": 1}
    return config | ({"shared_expert_intermediate_size": shape.shared_inner} if shape.shared_inner else {})

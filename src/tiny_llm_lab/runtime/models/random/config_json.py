"""The `config.json` of a random checkpoint, and the sampling of its `generation_config.json`."""

from typing import Any

from tiny_llm_lab.runtime.models.config.model_config import DRAFT_TYPES
from tiny_llm_lab.runtime.models.random import shapes


def config_json(shape: shapes.Shape) -> dict[str, Any]:
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
        "torch_dtype": shapes.DTYPES.get(shape.bits, "bfloat16"),
        "eos_token_id": shapes.IM_END,
        "pad_token_id": shapes.END_OF_TEXT,
    }
    config |= _experts_json(shape) | (_hybrid_json(shape) if shape.is_hybrid else _llama_json(shape))
    if shape.tower:
        config = _vision_json(shape, config)
    if shape.mtp == 2:
        config = {"model_type": DRAFT_TYPES[0], "text_config": config, "block_size": 3}
    if shape.bits not in shapes.DTYPES:
        packing = {"group_size": shape.group, "bits": shape.bits, "mode": "affine"}
        config |= {"quantization": packing, "quantization_config": packing}
    return config


def _experts_json(shape: shapes.Shape) -> dict[str, Any]:
    if not shape.experts:
        return {}
    return {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.active,
        "moe_intermediate_size": shape.expert_inner,
        "norm_topk_prob": bool(shape.norm_topk),
        "decoder_sparse_step": shape.sparse_step,
        "mlp_only_layers": [],
    } | ({"shared_expert_intermediate_size": shape.shared_inner} if shape.shared_inner else {})


def _vision_json(shape: shapes.Shape, text: dict[str, Any]) -> dict[str, Any]:
    """The `config.json` of a model that reads pictures, around that of its text model."""
    pairs = (shape.rotary or shape.head_dim) // 2
    third = pairs // 3
    sections = {"mrope_section": [pairs - 2 * third, third, third], "mrope_interleaved": True}
    rope = text.get("rope_parameters", {"rope_type": "default", "rope_theta": text["rope_theta"]})
    architecture = _ARCHITECTURES[shape.model_type]
    tower: dict[str, Any] = {
        "depth": shape.tower,
        "hidden_size": shape.tower_width,
        "intermediate_size": shape.tower_inner,
        "num_heads": shape.tower_heads,
        "out_hidden_size": shape.hidden,
        "patch_size": shape.tower_patch,
        "num_position_embeddings": shape.tower_side**2,
    }
    if shape.model_type == "qwen3_vl":
        between = shape.tower // (shape.deep + 1)
        tower["deepstack_visual_indexes"] = [(i + 1) * between for i in range(shape.deep)]
    start, picture, end = range(shapes.TOKENIZER_SIZE, shapes.TOKENIZER_SIZE + len(shapes.VISION_TOKENS))
    return {
        "architectures": [f"{architecture}ForConditionalGeneration"],
        "model_type": shape.model_type,
        "text_config": text | {"model_type": f"{shape.model_type}_text", "rope_parameters": rope | sections},
        "vision_config": tower | {"spatial_merge_size": 2, "temporal_patch_size": 2},
        "image_token_id": picture,
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "tie_word_embeddings": bool(shape.tied),
    }


_ARCHITECTURES = {
    "qwen2": "Qwen2",
    "qwen2_moe": "Qwen2Moe",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "qwen3_vl": "Qwen3VL",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
    "qwen3_next": "Qwen3Next",
    "llama": "Llama",
}


def sampling_json(shape: shapes.Shape) -> dict[str, Any]:
    """What the real model's `generation_config.json` asks for; {} for the shrunk ones, which stay greedy."""
    if shape.name.endswith("-shrunk"):
        return {}
    if shape.model_type == "llama":
        return {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    is_instruct = shape.model_type in ("qwen2", "qwen2_moe", "qwen3_next", "qwen3_vl")
    # Of Qwen3.5 what its model card recommends for thinking.
    warm = 0.7 if is_instruct else 1.0 if shape.model_type.startswith("qwen3_5") else 0.6
    drawn = {"do_sample": True, "temperature": warm, "top_k": 20, "top_p": 0.8 if is_instruct else 0.95}
    penalties = {"qwen2.5-0.5b": 1.1, "qwen2.5-7b": 1.05}
    return drawn | ({"repetition_penalty": penalties[shape.name]} if shape.name in penalties else {})


def _llama_json(shape: shapes.Shape) -> dict[str, Any]:
    """What Llama 3.1 and 3.2 have of their own in a `config.json`; the shrunk one began with 64 positions."""
    if shape.model_type != "llama":
        return {}
    original = min(8192, shape.positions // 8)
    limits = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
    factor = 32.0 if shape.name.startswith("llama-3.2") else 8.0
    return {
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": factor, **limits},
        "mlp_bias": False,
        "pretraining_tp": 1,
    }


def _hybrid_json(shape: shapes.Shape) -> dict[str, Any]:
    """What a hybrid adds to a `config.json`; Qwen3.5's of text alone has a type of its own."""
    rotary = {"partial_rotary_factor": shape.rotary / shape.head_dim}
    theta = {"rope_theta": 10000000.0}
    is_next = shape.model_type == "qwen3_next"
    ending = "" if is_next or shape.bits not in shapes.DTYPES else "_text"
    config = {
        "model_type": f"{shape.model_type}{ending}",
        "full_attention_interval": shape.interval,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.key_dim,
        "linear_value_head_dim": shape.value_dim,
        "linear_conv_kernel_dim": shapes.CONV_KERNEL,
        "attn_output_gate": True,
        "rope_parameters": {"rope_type": "default", **theta, **rotary},
        **theta,
    }
    if is_next:
        config |= rotary
    if shape.mtp:
        config |= {"mtp_num_hidden_layers": 1}
    return config

"""What is said about a `config.json` that we cannot run: the file, the key and its value, the cure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.checkpoints import Damage, complaint, edit_json, overwritten, without

from tiny_llm_lab import load_checkpoint

Copy = Callable[[str], Path]


def config(**changes: Any) -> Damage:
    return lambda folder: edit_json(folder / "config.json", **changes)


TYPES = "of type qwen2, qwen3 or qwen3_moe"
OTHER = "choose another checkpoint"
WITHOUT = "choose a checkpoint without it"
FILE_AGAIN = "fetch the file again"
NO_COUNT = "must be a whole number above 0"
NO_OBJECT = "must be an object or null"
Q_PROJ = "model.layers.0.self_attn.q_proj"
IN_7_BITS = {"bits": 7, "group_size": 64}
IN_PART_7_BITS = {"bits": 4, "group_size": 64, Q_PROJ: {"bits": 7, "group_size": 64}}
BITS_AND_GROUPS = "choose bits of 2, 3, 4, 5, 6 or 8 and groups of 32, 64 or 128"
UNPACKED = "choose an MLX one (mlx-community) or the unquantized checkpoint"
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 1e6}
SLIDING = {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2}
MOE_SLIDING = {"model_type": "qwen3_moe", "max_window_layers": 28, "num_experts": 8, "num_experts_per_tok": 2}


CONFIG_ERRORS: list[tuple[Damage, str]] = [
    (without("config.json"), "not there: name a folder that holds a complete checkpoint"),
    (overwritten("config.json", b"[]"), f"holds no JSON object: {FILE_AGAIN}"),
    (config(model_type="llama"), f"model_type 'llama' is not supported: {OTHER}, {TYPES}"),
    (config(model_type=...), f"model_type None is not supported: {OTHER}, {TYPES}"),
    (config(hidden_size=...), f"hidden_size {NO_COUNT}, not None: {FILE_AGAIN}"),
    (config(vocab_size="320"), f"vocab_size {NO_COUNT}, not '320': {FILE_AGAIN}"),
    (config(num_hidden_layers=0), f"num_hidden_layers {NO_COUNT}, not 0: {FILE_AGAIN}"),
    (config(rms_norm_eps=...), f"rms_norm_eps must be a number above 0, not None: {FILE_AGAIN}"),
    (config(rope_theta=...), f"rope_theta must be a number above 0, not None: {FILE_AGAIN}"),
    (config(head_dim=..., hidden_size=66), "hidden_size 66 does not split into 4 heads: add head_dim"),
    (
        config(num_key_value_heads=3),
        "4 query heads cannot share 3 kv heads: correct num_key_value_heads",
    ),
    (
        config(rope_parameters=LLAMA_3),
        f"rope_parameters of type 'llama3' is not supported: {WITHOUT}",
    ),
    (
        config(rope_parameters={"rope_theta": 1e6, "partial_rotary_factor": 0.5}),
        f"partial_rotary_factor is not supported: {OTHER}",
    ),
    (config(rope_scaling="yarn"), f"rope_scaling {NO_OBJECT}: {FILE_AGAIN}"),
    *(
        (config(**SLIDING | more), f"sliding-window attention is not supported: {OTHER}")
        # transformers slides by 4,096 tokens when the window is missing, and in all layers of an MoE.
        for more in ({}, {"sliding_window": ..., "max_position_embeddings": 8192}, MOE_SLIDING)
    ),
    (
        config(layer_types=["full_attention", "sliding_attention", "full_attention"]),
        f"sliding-window attention is not supported: {OTHER}",
    ),
    (config(attention_bias=True), f"attention_bias is not supported in qwen3: {OTHER}"),
    (
        config(is_causal=False),
        f"is_causal false, of embedding models, is not supported: {OTHER}, one that generates text",
    ),
    (config(hidden_act="gelu"), f"hidden_act 'gelu' is not supported: {OTHER}"),
    (
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        f"'gptq' quantization is not supported: {UNPACKED}",
    ),
    (
        config(quantization_config={"quant_method": "awq", "bits": 4}),
        f"'awq' quantization is not supported: {UNPACKED}",
    ),
    (
        config(quantization=IN_7_BITS),
        f"quantization in 7 bits and groups of 64 is not supported: {BITS_AND_GROUPS}",
    ),
    (
        config(quantization=IN_PART_7_BITS),
        f"{Q_PROJ} in 7 bits and groups of 64 is not supported: {BITS_AND_GROUPS}",
    ),
    *(
        (config(quantization_config=old), f"'bitsandbytes' quantization is not supported: {UNPACKED}")
        for old in ({"load_in_4bit": True}, {"_load_in_8bit": True, "bnb_4bit_quant_type": "nf4"})
    ),
    (config(quantization={"group_size": 64}), f"quantization has no bits: {UNPACKED}"),
    (config(quantization={"bits": 4}), f"quantization has no group_size: {UNPACKED}"),
    (config(quantization="4bit"), f"quantization {NO_OBJECT}: {FILE_AGAIN}"),
]


@pytest.mark.parametrize(("damage", "expected"), CONFIG_ERRORS, ids=[text for _, text in CONFIG_ERRORS])
def test_a_configuration_we_cannot_run(copy: Copy, damage: Damage, expected: str) -> None:
    folder = copy("random:qwen3-shrunk")
    damage(folder)
    assert complaint(folder) == f"{folder}/config.json: {expected}"


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b'{"a": 1', b"[" * 100_000])
def test_a_file_that_is_no_json(copy: Copy, content: bytes) -> None:
    folder = copy("random:qwen3-shrunk")
    (folder / "config.json").write_bytes(content)
    message = complaint(folder)
    assert message.startswith(f"{folder}/config.json: cannot be read (")
    assert message.endswith(f"): {FILE_AGAIN}")


def test_an_is_causal_that_says_the_usual_is_no_complaint(copy: Copy) -> None:
    folder = copy("random:qwen3-shrunk")
    for value in (True, None):
        edit_json(folder / "config.json", is_causal=value)
        assert load_checkpoint(folder).config.num_hidden_layers == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": False, "sliding_window": 128, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 3},
        {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 128, "layer_types": ["full_attention"] * 3},
        {"use_sliding_window": True, "sliding_window": 512, "layer_types": ["sliding_attention"] * 3},
    ],
)
def test_a_window_that_hides_nothing_is_no_complaint(copy: Copy, changes: dict[str, object]) -> None:
    """No window, no layer that has it, or one as wide as the longest text."""
    folder = copy("random:qwen3-shrunk")
    edit_json(folder / "config.json", **changes)
    assert load_checkpoint(folder).config.max_position_embeddings == 512

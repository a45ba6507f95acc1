"""What is said about a `config.json` that we cannot run: the file, the key and its value, the cure."""

import pytest
from tests.helpers.checkpoints import complaint, overwritten, without

from tiny_llm_lab import load_checkpoint

QWEN3, MOE = "random:qwen3-shrunk", "random:qwen3-moe-shrunk"
NO = "is not supported"
OTHER, WITHOUT = "choose another checkpoint", "choose a checkpoint without it"
AGAIN = "fetch the file again"
NO_COUNT, NO_NUMBER = "must be a whole number above 0", "must be a number above 0"
NO_OBJECT, NO_FLAG = "must be an object or null", "must be true or false, not 'false'"
TRAINED = "add it, the context length of the first training"
TYPES = "of type qwen2, qwen2_moe, qwen3, qwen3_moe, qwen3_5, qwen3_5_moe, qwen3_next, llama, qwen2_5_vl, "
TYPES += "qwen3_vl or qwen3_vl_moe"
Q_PROJ = "model.layers.0.self_attn.q_proj"
SIZES = "choose bits of 2, 3, 4, 5, 6 or 8 and groups of 32, 64 or 128"
UNPACKED = "choose an MLX checkpoint (mlx-community) or the unquantized one"
PACKED = {"bits": 4, "group_size": 64}
MXFP4 = {"bits": 4, "group_size": 32, "mode": "mxfp4"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [48, 40]}
EXTRA = "extrapolation_factor"
ORIGINAL = "original_max_position_embeddings"
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 512}
LLAMA = {"rope_type": "llama3"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}
SLIDING = {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2}
MOE_SLIDING = {"model_type": "qwen3_moe", "max_window_layers": 28, "num_experts": 8, "num_experts_per_tok": 2}
NO_WINDOW = f"sliding-window attention {NO}: {OTHER}"

REFUSED = {
    f"model_type 'gemma3' {NO}: {OTHER}, {TYPES}": {"model_type": "gemma3"},
    f"model_type None {NO}: {OTHER}, {TYPES}": {"model_type": ...},
    f"hidden_size {NO_COUNT}, not None: {AGAIN}": {"hidden_size": ...},
    f"vocab_size {NO_COUNT}, not '320': {AGAIN}": {"vocab_size": "320"},
    f"num_hidden_layers {NO_COUNT}, not 0: {AGAIN}": {"num_hidden_layers": 0},
    f"rms_norm_eps {NO_NUMBER}, not None: {AGAIN}": {"rms_norm_eps": ...},
    f"rope_theta {NO_NUMBER}, not None: {AGAIN}": {"rope_theta": ...},
    f"tie_word_embeddings {NO_FLAG}: {AGAIN}": {"tie_word_embeddings": "false"},
    f"attention_bias {NO_FLAG}: {AGAIN}": {"attention_bias": "false"},
    f"is_causal {NO_FLAG}: {AGAIN}": {"is_causal": "false"},
    "hidden_size 66 does not split into 4 heads: add head_dim": {"head_dim": ..., "hidden_size": 66},
    "4 query heads cannot be split over 3 kv heads: correct num_key_value_heads": {"num_key_value_heads": 3},
    f"attention_bias {NO} in qwen3: {OTHER}": {"attention_bias": True},
    f"is_causal false, as in embedding models, {NO}: {OTHER}, one that generates text": {"is_causal": False},
    f"hidden_act 'gelu' {NO}: {OTHER}": {"hidden_act": "gelu"},
    f"partial_rotary_factor {NO}: {OTHER}": {"rope_parameters": {"partial_rotary_factor": 0.5}},
    f"rope_parameters of type 'llama3' needs {ORIGINAL}: {TRAINED}": {"rope_parameters": LLAMA},
    f"full_attention in rope_parameters of type 'default' {NO}: {WITHOUT}": {
        "rope_parameters": {"full_attention": {"rope_theta": 1e6}}
    },
    f"rope_parameters and rope_scaling differ: {AGAIN}": {"rope_scaling": YARN, "rope_parameters": LINEAR},
    f"rope_theta has two values, 5000.0 and 6000.0: {AGAIN}": {
        "rope_theta": 5000.0,
        "rope_parameters": {"rope_theta": 6000.0},
    },
}
OF_POSITIONS = {
    f"rope_scaling {NO_OBJECT}: {AGAIN}": "yarn",
    f"high_freq_factor must be above low_freq_factor: {AGAIN}": LLAMA3 | {"low_freq_factor": 4.0},
    f"beta_fast in rope_scaling of type 'llama3' {NO}: {WITHOUT}": LLAMA3 | {"beta_fast": 4},
    f"rope_scaling of type 'longrope' {NO}: {WITHOUT}": {"type": "longrope"},
    f"rope_scaling of type 'yarn' needs {ORIGINAL}: {TRAINED}": {"type": "yarn", "factor": 4.0},
    f"{EXTRA} in rope_scaling of type 'yarn' {NO}: {WITHOUT}": YARN | {EXTRA: 2.0},
    f"beta_fast in rope_scaling of type 'linear' {NO}: {WITHOUT}": LINEAR | {"beta_fast": 2.0},
    f"factor {NO_NUMBER}, not None: {AGAIN}": {"type": "linear"},
    f"factor must be 1 or more, not 0.5: {AGAIN}": YARN | {"factor": 0.5},
    f"factor {NO_NUMBER}, not '4': {AGAIN}": YARN | {"factor": "4"},
    f"rope_type and type in rope_scaling differ: {AGAIN}": YARN | {"type": "linear"},
    f"rope_scaling of type 'dynamic' with another {ORIGINAL} than max_position_embeddings {NO}: {OTHER}": {
        **{"type": "dynamic", "factor": 4.0, ORIGINAL: 256}
    },
}
GROUPS = f"bits and groups of 32 {NO}: choose 4 bits and groups of"
OF_PACKING = {
    f"quantization {NO_OBJECT}: {AGAIN}": "4bit",
    f"quantization needs bits: {UNPACKED}": {"group_size": 64},
    f"quantization needs group_size: {UNPACKED}": {"bits": 4},
    f"quantization in 7 bits and groups of 64 {NO}: {SIZES}": PACKED | {"bits": 7},
    f"{Q_PROJ} in 7 bits and groups of 64 {NO}: {SIZES}": PACKED | {Q_PROJ: PACKED | {"bits": 7}},
    f"quantization mode 'mxfp5' {NO}: choose one of affine, mxfp4, mxfp8 or nvfp4": MXFP4 | {"mode": "mxfp5"},
    f"quantization in mxfp4 with 8 {GROUPS} 32": MXFP4 | {"bits": 8},
    f"{Q_PROJ} in nvfp4 with 4 {GROUPS} 16": PACKED | {Q_PROJ: {"mode": "nvfp4", "group_size": 32}},
}
OF_FP8 = {"weight_block_size": None, "activation_scheme": "static", "fmt": "e5m2", "scale_fmt": "ue8m0"}
OF_OTHERS = {
    **{f"fp8 quantization with {key} {value!r}": FP8 | {key: value} for key, value in OF_FP8.items()},
    **{
        f"{method!r} quantization": {"quant_method": method, "bits": 4}
        for method in ("gptq", "awq", "compressed-tensors", "modelopt", "mxfp4", "fbgemm_fp8")
    },
}
# transformers slides by 4,096 tokens when the window is missing, and in all layers of an MoE.
WINDOWS = ({}, {"sliding_window": ..., "max_position_embeddings": 8192}, MOE_SLIDING)
OLD = ({"load_in_4bit": True}, {"_load_in_8bit": True, "bnb_4bit_quant_type": "nf4"})
ALIKE = [
    *((said, {"rope_scaling": value}) for said, value in OF_POSITIONS.items()),
    *((said, {"quantization": value}) for said, value in OF_PACKING.items()),
    *((f"{said} {NO}: {UNPACKED}", {"quantization_config": value}) for said, value in OF_OTHERS.items()),
    *((NO_WINDOW, SLIDING | more) for more in WINDOWS),
    (NO_WINDOW, {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    *((f"'bitsandbytes' quantization {NO}: {UNPACKED}", {"quantization_config": old}) for old in OLD),
]
OF_EXPERTS = {
    "a token cannot use 9 of 8 experts: correct num_experts_per_tok": {"num_experts_per_tok": 9},
    f"mlp_only_layers must be a list of numbers: {AGAIN}": {"mlp_only_layers": 1},
    f"num_experts {NO_COUNT}, not None: {AGAIN}": {"num_experts": ...},
    f"norm_topk_prob {NO_FLAG}: {AGAIN}": {"norm_topk_prob": "false"},
    f"attention_bias {NO} in qwen3_moe: {OTHER}": {"attention_bias": True},
}
CASES = [(QWEN3, *row) for row in (*REFUSED.items(), *ALIKE)] + [(MOE, *row) for row in OF_EXPERTS.items()]


@pytest.mark.parametrize(("name", "expected", "changes"), CASES, ids=[expected for _, expected, _ in CASES])
def test_a_configuration_we_cannot_run(copy, name, expected, changes):
    folder = copy(name, **changes)
    assert complaint(folder) == f"{folder}/config.json: {expected}"


NO_CONFIGS = [
    (without("config.json"), "missing: name a folder with a complete checkpoint"),
    (overwritten("config.json", b"[]"), f"not a JSON object: {AGAIN}"),
]


@pytest.mark.parametrize(("damage", "expected"), NO_CONFIGS)
def test_a_file_that_is_no_configuration(copy, damage, expected):
    folder = copy(QWEN3)
    damage(folder)
    assert complaint(folder) == f"{folder}/config.json: {expected}"


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b'{"a": 1', b"[" * 100_000])
def test_a_file_that_is_no_json(copy, content):
    folder = copy(QWEN3)
    (folder / "config.json").write_bytes(content)
    message = complaint(folder)
    assert message.startswith(f"{folder}/config.json: cannot read it (")
    assert message.endswith(f"): {AGAIN}")


HARMLESS = [
    {"is_causal": True},
    {"is_causal": None},
    {"use_sliding_window": False, "sliding_window": 128, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 3},
    {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 128, "layer_types": ["full_attention"] * 3},
    {"use_sliding_window": True, "sliding_window": 512, "layer_types": ["sliding_attention"] * 3},
]


@pytest.mark.parametrize("changes", HARMLESS)
def test_what_changes_nothing_is_no_complaint(copy, changes):
    """No window, no layer that has it, or one as wide as the longest text."""
    folder = copy(QWEN3, **changes)
    assert load_checkpoint(folder).config.max_position_embeddings == 512

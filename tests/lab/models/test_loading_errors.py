"""Whatever is wrong with a checkpoint is one line: the file, what is wrong with it, the cure."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import edit_json, edit_tensors, split_into_shards

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import UserError

Copy = Callable[[str], Path]
Damage = Callable[[Path], object]


def complaint(name: str | Path, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_checkpoint(str(name), **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def config(**changes: Any) -> Damage:
    return lambda folder: edit_json(folder / "config.json", **changes)


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def overwritten(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def lost_shard(folder: Path) -> None:
    split_into_shards(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()


def header(content: object) -> Damage:
    encoded = json.dumps(content).encode()
    return overwritten("model.safetensors", len(encoded).to_bytes(8, "little") + encoded + bytes(64))


def strange_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 1}')


OTHER = "choose another checkpoint"
AGAIN = "fetch the whole checkpoint again"
FILE_AGAIN = "fetch the file again"
BELONGING = "use the config.json that belongs to these weights"
NO_COUNT = "must be a whole number above 0"
NO_OBJECT = "must be an object or null"
Q_PROJ = "model.layers.0.self_attn.q_proj"
IN_7_BITS = {"bits": 7, "group_size": 64}
IN_PART_7_BITS = {"bits": 4, "group_size": 64, Q_PROJ: {"bits": 7, "group_size": 64}}
MXFP4 = {"bits": 4, "group_size": 32, "mode": "mxfp4"}
BITS_AND_GROUPS = "choose bits of 2, 3, 4, 5, 6 or 8 and groups of 32, 64 or 128"
UNPACKED = "choose an MLX one (mlx-community) or the unquantized checkpoint"
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 1e6}
SLIDING = {"use_sliding_window": True, "sliding_window": 128}

CONFIG_ERRORS: list[tuple[Damage, str]] = [
    (without("config.json"), "not there: name a folder that holds a complete checkpoint"),
    (overwritten("config.json", b"[]"), f"holds no JSON object: {FILE_AGAIN}"),
    (config(model_type="llama"), f"model_type 'llama' is not supported: {OTHER}, of type qwen2 or qwen3"),
    (config(model_type=...), f"model_type None is not supported: {OTHER}, of type qwen2 or qwen3"),
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
        config(rope_scaling={"type": "yarn", "factor": 4.0}),
        f"rope_scaling of type 'yarn' is not supported: set it to null, or {OTHER}",
    ),
    (
        config(rope_parameters=LLAMA_3),
        f"rope_parameters of type 'llama3' is not supported: set it to null, or {OTHER}",
    ),
    (config(rope_scaling="yarn"), f"rope_scaling {NO_OBJECT}: {FILE_AGAIN}"),
    (config(**SLIDING), f"sliding-window attention is not supported: {OTHER}"),
    (
        config(layer_types=["full_attention", "sliding_attention", "full_attention"]),
        f"sliding-window attention is not supported: {OTHER}",
    ),
    (config(attention_bias=True), f"attention_bias is not supported in qwen3: {OTHER}"),
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
        config(quantization=MXFP4),
        "quantization mode 'mxfp4' is not supported: choose an affine one or the unquantized checkpoint",
    ),
    (
        config(quantization=IN_7_BITS),
        f"quantization in 7 bits and groups of 64 is not supported: {BITS_AND_GROUPS}",
    ),
    (
        config(quantization=IN_PART_7_BITS),
        f"{Q_PROJ} in 7 bits and groups of 64 is not supported: {BITS_AND_GROUPS}",
    ),
    (config(quantization="4bit"), f"quantization {NO_OBJECT}: {FILE_AGAIN}"),
]

# The complaint is of the folder unless it names a file.
FOLDER_ERRORS: list[tuple[Damage, str]] = [
    (without("model.safetensors"), f": holds no *.safetensors file: {AGAIN}"),
    (without("tokenizer.json"), f": holds no tokenizer.json: {AGAIN}"),
    (
        lost_shard,
        f"/model-00002-of-00003.safetensors: named by model.safetensors.index.json but not there: {AGAIN}",
    ),
    (
        overwritten("model.safetensors.index.json", b'{"weight_map": {}}'),
        f"/model.safetensors.index.json: has no weight_map of file names: {FILE_AGAIN}",
    ),
    (
        overwritten("model.safetensors.index.json", b'{"weight_map": {"a": "../x.safetensors"}}'),
        f"/model.safetensors.index.json: has no weight_map of file names: {FILE_AGAIN}",
    ),
    (
        lambda folder: edit_tensors(folder, model__norm__weight=None),
        f": tensor model.norm.weight is missing: {AGAIN}",
    ),
    (
        config(tie_word_embeddings=False),
        f": tensor lm_head.weight is missing: {AGAIN}",
    ),
    (
        lambda folder: edit_tensors(folder, model__norm__weight=mx.ones(65)),
        "/model.safetensors: tensor model.norm.weight is F32 [65], not F32 or F16 or BF16 [64]: " + BELONGING,
    ),
    (
        lambda folder: edit_tensors(folder, model__norm__weight=mx.ones(64, mx.int8)),
        "/model.safetensors: tensor model.norm.weight is I8 [64], not F32 or F16 or BF16 [64]: " + BELONGING,
    ),
    (
        truncated,
        f"/model.safetensors: damaged or cut short (1000 bytes are missing at its end): {FILE_AGAIN}",
    ),
    (
        overwritten("model.safetensors", b""),
        f"/model.safetensors: damaged or cut short (its header is longer than the file): {FILE_AGAIN}",
    ),
    (
        overwritten("model.safetensors", b"<!DOCTYPE html><html><head>"),
        f"/model.safetensors: damaged or cut short (its header is longer than the file): {FILE_AGAIN}",
    ),
    (
        header(["no object"]),
        f"/model.safetensors: damaged or cut short (its header is no JSON object): {FILE_AGAIN}",
    ),
    (
        header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
        f"/model.safetensors: damaged or cut short (the header's entry for x makes no sense): {FILE_AGAIN}",
    ),
    (
        header({"x": {"dtype": "F99", "shape": [2], "data_offsets": [0, 4]}}),
        f"/model.safetensors: damaged or cut short (the header's entry for x makes no sense): {FILE_AGAIN}",
    ),
]


@pytest.mark.parametrize(("damage", "expected"), CONFIG_ERRORS, ids=[text for _, text in CONFIG_ERRORS])
def test_a_configuration_we_cannot_run(copy: Copy, damage: Damage, expected: str) -> None:
    folder = copy("random:qwen3-shrunk")
    damage(folder)
    assert complaint(folder) == f"{folder}/config.json: {expected}"


@pytest.mark.parametrize(("damage", "expected"), FOLDER_ERRORS, ids=[text for _, text in FOLDER_ERRORS])
def test_a_folder_that_is_damaged(copy: Copy, damage: Damage, expected: str) -> None:
    folder = copy("random:qwen3-shrunk")
    damage(folder)
    assert complaint(folder) == f"{folder}{expected}"


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b'{"a": 1', b"[" * 100_000])
def test_a_file_that_is_no_json(copy: Copy, content: bytes) -> None:
    folder = copy("random:qwen3-shrunk")
    (folder / "config.json").write_bytes(content)
    message = complaint(folder)
    assert message.startswith(f"{folder}/config.json: cannot be read (")
    assert message.endswith(f"): {FILE_AGAIN}")


def test_a_tokenizer_that_is_damaged(copy: Copy) -> None:
    folder = copy("random:qwen3-shrunk")
    strange_tokenizer(folder)
    message = complaint(folder)
    assert message.startswith(f"{folder}: its tokenizer cannot be read (")
    assert message.endswith("): fetch its files again")


def test_packed_weights_that_do_not_fit(copy: Copy) -> None:
    folder = copy("random:qwen3-shrunk,bits=4")
    name = Q_PROJ.replace(".", "__")
    edit_tensors(folder, **{f"{name}__biases": None})
    assert complaint(folder) == f"{folder}: tensor {Q_PROJ}.biases is missing: {AGAIN}"
    edit_tensors(folder, **{f"{name}__biases": mx.ones((128, 2))})
    at = f"{folder}/model.safetensors: tensor {Q_PROJ}"
    assert complaint(folder) == f"{at}.biases is F32 [128, 2], not F32 or F16 or BF16 [128, 1]: {BELONGING}"
    edit_tensors(folder, **{f"{name}__weight": mx.ones((128, 7), mx.uint32)})
    assert complaint(folder) == f"{at}.weight is U32 [128, 7], not U32 [128, 8]: {BELONGING}"


def test_packed_weights_that_nobody_declared(copy: Copy) -> None:
    folder = copy("random:qwen3-shrunk,bits=4")
    edit_json(folder / "config.json", quantization=..., quantization_config=...)
    at = f"{folder}/model.safetensors: tensor model.embed_tokens.weight is U32 [320, 8]"
    assert complaint(folder) == f"{at}, not F32 or F16 or BF16 [320, 64]: {BELONGING}"


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    missing = tmp_path / "missing"
    choice = "name one that holds a checkpoint, or use 'default'"
    assert complaint(missing) == f"{missing}: no such folder: {choice}"
    assert complaint("./missing") == f"./missing: no such folder: {choice}"
    assert complaint("~nobody/x") == f"~nobody/x: no such folder: {choice}"
    assert complaint("x" * 5000).startswith("unknown model 'xxx")
    assert complaint("a\0b").startswith("unknown model 'a\\x00b'")
    assert complaint(file) == f"{file}: is a file: name the folder that holds it"
    assert complaint("qwen9").startswith("unknown model 'qwen9': choose one of default, qwen3-0.6b, ")


def test_settings_that_mean_nothing() -> None:
    assert complaint("default", device="tpu") == "unknown device 'tpu': choose cpu or gpu"
    dtypes = "choose one of float32, bfloat16, float16"
    assert complaint("default", dtype="int8") == f"unknown dtype 'int8': {dtypes}"
    assert complaint("default", dtype=mx.int32) == f"unknown dtype 'mlx.core.int32': {dtypes}"


def test_the_slow_libraries_wait_until_they_are_needed() -> None:
    slow = "('mlx_lm', 'transformers', 'huggingface_hub', 'tokenizers')"
    code = f"import sys, tiny_llm_lab; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

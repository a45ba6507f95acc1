"""Whatever is wrong with a checkpoint is one line: the file, what is wrong with it, the cure."""

import asyncio
import json
import sys

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import complaint, edit_json, edit_tensors, overwritten, shard, without
from tests.helpers.processes import finished

from tiny_llm_lab import LLM
from tiny_llm_lab.runtime.models.config.fields import require_files
from tiny_llm_lab.runtime.models.registry import SHIPPED
from tiny_llm_lab.serving.async_engine.model import on_thread, run_model
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import load
from tiny_llm_lab.types import UserError


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def lost_shard(folder):
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()


def header(content):
    encoded = json.dumps(content).encode()
    return overwritten("model.safetensors", len(encoded).to_bytes(8, "little") + encoded + bytes(64))


def untied(folder):
    edit_json(folder / "config.json", tie_word_embeddings=False)


AGAIN = "fetch the whole checkpoint again"
FILE_AGAIN = "fetch the file again"
BELONGING = "use the config.json that belongs to these weights"
Q_PROJ = "model.layers.0.self_attn.q_proj"

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = "model-00002-of-00003.safetensors"
CUT_SHORT = f"/{WEIGHTS}: damaged or cut short"
NO_SENSE = f"{CUT_SHORT} (the header's entry for x is invalid): {FILE_AGAIN}"
NO_NAMES = f"/{INDEX}: it has no weight_map of file names: {FILE_AGAIN}"
NORM = f"/{WEIGHTS}: tensor model.norm.weight is"


def norm(tensor):
    return lambda folder: edit_tensors(folder, {"model.norm.weight": tensor})


def entry(name, dtype, size, *ends):
    return {name: {"dtype": dtype, "shape": [size], "data_offsets": ends}}


# The complaint is of the folder unless it names a file.
FOLDER_ERRORS = [
    (without(WEIGHTS), f": it has no model*.safetensors file: {AGAIN}"),
    (without("tokenizer.json"), f": it has no tokenizer.json: {AGAIN}"),
    (lost_shard, f"/{SHARD}: missing, but named in {INDEX}: {AGAIN}"),
    (overwritten(INDEX, b'{"weight_map": {}}'), NO_NAMES),
    (overwritten(INDEX, b'{"weight_map": {"a": "../x.safetensors"}}'), NO_NAMES),
    (norm(None), f": tensor model.norm.weight is missing: {AGAIN}"),
    (untied, f": tensor lm_head.weight is missing: {AGAIN}"),
    (norm(mx.ones(65)), f"{NORM} F32 [65], not F32 or F16 or BF16 [64]: {BELONGING}"),
    (norm(mx.ones(64, mx.int8)), f"{NORM} I8 [64], not F32 or F16 or BF16 [64]: {BELONGING}"),
    (truncated, f"{CUT_SHORT} (its last 1000 bytes are missing): {FILE_AGAIN}"),
    (overwritten(WEIGHTS, b""), f"{CUT_SHORT} (its header is longer than the file): {FILE_AGAIN}"),
    (overwritten(WEIGHTS, b"<!DOCTYPE>"), f"{CUT_SHORT} (its header is longer than the file): {FILE_AGAIN}"),
    (header(["no object"]), f"{CUT_SHORT} (its header is not a JSON object): {FILE_AGAIN}"),
    (header(entry("x", "F32", 2, 0, 4)), NO_SENSE),
    (header(entry("x", "F99", 2, 0, 4)), NO_SENSE),
    (
        header({k: v for at in (12, 5, 20) for k, v in entry(str(at), "F32", 2, at, at + 8).items()}),
        f"{CUT_SHORT} (two tensors share bytes): {FILE_AGAIN}",
    ),
]


@pytest.mark.parametrize(("damage", "expected"), FOLDER_ERRORS, ids=[text for _, text in FOLDER_ERRORS])
def test_a_folder_that_is_damaged(copy, damage, expected):
    folder = copy("random:qwen3-shrunk")
    damage(folder)
    assert complaint(folder) == f"{folder}{expected}"


NO_TOKENS = [-1, 320, 10**9, 2**70, True, 2.0, "2", [2, [3]], [2, None], {"id": 2}]


@pytest.mark.parametrize("value", NO_TOKENS)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_end_that_is_no_token_is_refused(copy, file, value):
    folder = copy("random:qwen3-shrunk")
    edit_json(folder / file, eos_token_id=value)
    says = f"eos_token_id must be token ids below 320, not {value!r}"
    assert complaint(folder) == f"{folder}/{file}: {says}: {FILE_AGAIN}"


def test_a_tokenizer_that_is_damaged(copy):
    folder = copy("random:qwen3-shrunk")
    (folder / "tokenizer.json").write_text('{"model": 1}')
    message = complaint(folder)
    assert message.startswith(f"{folder}: its tokenizer cannot be read (")
    assert message.endswith("): fetch its files again")


def test_packed_weights_that_do_not_fit(copy):
    folder = copy("random:qwen3-shrunk,bits=4")
    edit_tensors(folder, {f"{Q_PROJ}.biases": None})
    assert complaint(folder) == f"{folder}: tensor {Q_PROJ}.biases is missing: {AGAIN}"
    edit_tensors(folder, {f"{Q_PROJ}.biases": mx.ones((128, 2))})
    at = f"{folder}/model.safetensors: tensor {Q_PROJ}"
    assert complaint(folder) == f"{at}.biases is F32 [128, 2], not F32 or F16 or BF16 [128, 1]: {BELONGING}"
    edit_tensors(folder, {f"{Q_PROJ}.weight": mx.ones((128, 7), mx.uint32)})
    assert complaint(folder) == f"{at}.weight is U32 [128, 7], not U32 [128, 8]: {BELONGING}"


def test_a_packing_has_whole_groups(copy):
    folder = copy("random:qwen3-shrunk,bits=4,hidden=96,group=32")
    edit_tensors(folder, {f"{Q_PROJ}.{part}": mx.ones((128, 1)) for part in ("scales", "biases")})
    assert ".scales is F32 [128, 1], not F32 or F16 or BF16 [128, 3]" in complaint(folder)


def test_packed_weights_that_nobody_declared(copy):
    folder = copy("random:qwen3-shrunk,bits=4", quantization=..., quantization_config=...)
    at = f"{folder}/model.safetensors: tensor model.embed_tokens.weight is U32 [320, 8]"
    assert complaint(folder) == f"{at}, not F32 or F16 or BF16 [320, 64]: {BELONGING}"


def test_names_that_mean_nothing(tmp_path, monkeypatch):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    missing = tmp_path / "missing"
    choice = "name one with a checkpoint, or use 'default'"
    assert complaint(missing) == f"{missing} is not a folder: {choice}"
    assert complaint("./missing") == f"./missing is not a folder: {choice}"
    assert complaint("~nobody/x") == f"~nobody/x is not a folder: {choice}"
    assert complaint("x" * 5000).startswith("unknown model 'xxx")
    assert complaint("a\0b").startswith("unknown model 'a\\x00b'")
    assert complaint(file) == f"{file} is a file: name the folder that it is in"
    monkeypatch.setitem(SHIPPED, "default-hybrid", missing)
    assert complaint("default-hybrid").endswith(
        f"is missing in {missing}: restore it with git, or install again"
    )
    with pytest.raises(UserError, match="missing: missing: fetch"):
        require_files(missing)
    assert complaint("qwen9").startswith(
        "unknown model 'qwen9': choose one of default, default-hybrid, qwen3-0.6b, "
    )


def test_settings_that_mean_nothing():
    assert complaint("default", device="tpu") == "unknown device 'tpu': choose cpu or gpu"
    dtypes = "choose one of float32, bfloat16, float16"
    assert complaint("default", dtype="int8") == f"unknown dtype 'int8': {dtypes}"
    assert complaint("default", dtype=mx.int32) == f"unknown dtype 'mlx.core.int32': {dtypes}"


def test_the_slow_libraries_wait_until_they_are_needed():
    slow = "('mlx_lm', 'transformers', 'huggingface_hub', 'tokenizers')"
    code = f"import sys, tiny_llm_lab; print([name for name in {slow} if name in sys.modules])"
    done = finished([sys.executable, "-c", code], check=True)
    assert done.stdout == "[]\n"


# A model whose numbers overflow while it computes is refused before it answers anybody


WAYS = {
    "the commands": lambda model: load(ModelSettings(model, "ref", "cpu", "float16")),
    "mlx-lm": lambda model: load(ModelSettings(model, "mlx-lm", "cpu", "float16")),
    "LLM": lambda model: LLM(model, dtype=mx.float16),
    "the server": lambda model: asyncio.run(run_model(on_thread(ModelSettings(model, dtype="float16")))),
}


def test_one_logit_that_the_dtype_cannot_hold_is_refused(copy):
    folder = copy("random:qwen3-shrunk,tied=0")
    head = mx.concatenate([mx.full((1, 64), 6e4), mx.zeros((319, 64))])
    edit_tensors(folder, {"lm_head.weight": head, "model.norm.weight": mx.full((64,), 1e3)})
    with pytest.raises(UserError, match="its logits in float16 are NaN or infinite"):
        WAYS["the commands"](str(folder))


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_the_dtype_cannot_hold_is_refused(copy, way):
    """Weights that float16 can hold, in sums that it cannot."""
    folder = copy("random:qwen3-shrunk")
    shapes = {"up": (192, 64), "down": (64, 192)}
    edit_tensors(folder, {f"model.layers.0.mlp.{k}_proj.weight": mx.full(v, 6e4) for k, v in shapes.items()})
    with pytest.raises(UserError) as caught:
        WAYS[way](str(folder))
    cure = "choose another --dtype, or fetch the whole checkpoint again"
    assert str(caught.value) == f"{folder}: its logits in float16 are NaN or infinite: {cure}"
    load(ModelSettings(str(folder), "ref", "cpu", "float32"))

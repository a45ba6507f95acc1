"""Which files of a folder hold the weights, and which tensors may be in them beside those of the model."""

import errno
import os
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import (
    complaint,
    copy_of,
    differing,
    edit_tensors,
    overwritten,
    save_tensors,
    shard,
    tensors_of,
)

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.loading import DTYPES

QWEN3, QWEN2, PACKED = "random:qwen3-shrunk", "random:qwen2.5-shrunk,tied=1", "random:qwen3-shrunk,bits=4"
Q_PROJ = "model.layers.0.self_attn.q_proj"
BELONGING = "use the config.json that belongs to these weights"


def is_unchanged(folder):
    return not differing(folder, QWEN3)


def write_zeros(folder, file):
    """Another file with the names of the model's tensors and other numbers."""
    zeros = {name: mx.zeros_like(tensor) for name, tensor in tensors_of(folder).items()}
    save_tensors(folder, zeros, file)


@pytest.mark.parametrize("file", ["consolidated.safetensors", "adapters.safetensors", "zzz.safetensors"])
def test_files_of_other_names_are_not_read(copy, file):
    folder = copy(QWEN3)
    write_zeros(folder, file)
    assert is_unchanged(folder)


def test_a_tensor_in_two_files_is_refused(copy):
    folder = copy(QWEN3)
    write_zeros(folder, "model_old.safetensors")
    said = complaint(folder)
    assert said.startswith(f"{folder}/model_old.safetensors: tensor model.")
    assert said.endswith(" is also in model.safetensors: remove the wrong file")


def test_with_an_index_no_other_file_is_read(copy):
    folder = copy(QWEN3)
    shard(folder)
    save_tensors(folder, {name: mx.zeros((1,)) for name in load_checkpoint(QWEN3).weights})
    assert is_unchanged(folder)


def test_weights_under_another_name_are_not_guessed(copy):
    folder = copy(QWEN3)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert complaint(folder) == (f"{folder}: it has no model*.safetensors file: rename its weight file")


# What mlx-lm and transformers would compute with, and this model would leave out without a word.
LEFTOVERS = [
    (QWEN3, f"{Q_PROJ}.bias", 128),
    (QWEN3, "model.layers.2.self_attn.o_proj.bias", 64),
    (QWEN3, "model.layers.1.mlp.up_proj.bias", 192),
    (QWEN3, "model.layers.3.input_layernorm.weight", 64),
    (QWEN3, "score.weight", 64),
    (QWEN2, "model.layers.0.self_attn.q_norm.weight", 16),
    ("random:qwen3-shrunk,tied=0", "lm_head.bias", 320),
    (QWEN3, "model.layers.0.mlp.gate_proj.scales", 64),
]


@pytest.mark.parametrize(("name", "tensor", "size"), LEFTOVERS, ids=[tensor for _, tensor, _ in LEFTOVERS])
def test_a_tensor_that_the_model_has_not_is_refused(copy, name, tensor, size):
    folder = copy(name)
    edit_tensors(folder, {tensor: mx.zeros(size)})
    kind = "qwen2" if name == QWEN2 else "qwen3"
    assert complaint(folder) == (
        f"{folder}/model.safetensors: tensor {tensor} is not in the {kind} model of config.json: " + BELONGING
    )


def test_an_adapter_is_to_be_fused(copy):
    folder = copy(QWEN3)
    edit_tensors(folder, {f"{Q_PROJ}.lora_a": mx.zeros((64, 8))})
    assert complaint(folder).endswith(
        f"tensor {Q_PROJ}.lora_a is not in the qwen3 model of config.json: "
        "fuse the adapter into the weights first"
    )


def test_rotary_tables_may_be_there(copy):
    folder = copy(QWEN3)
    tables = ("model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq")
    edit_tensors(folder, dict.fromkeys(tables, mx.zeros(16)))
    assert is_unchanged(folder)


def with_head(name, folder, change):
    """A tied checkpoint that ships the head too: its embedding, after `change`."""
    copy_of(name, folder)
    tensors, embedding = tensors_of(folder), "model.embed_tokens."
    heads = {
        name.replace(embedding, "lm_head."): change(name, tensor)
        for name, tensor in tensors.items()
        if name.startswith(embedding)
    }
    save_tensors(folder, tensors | heads)
    return folder


@pytest.mark.parametrize("name", [QWEN3, QWEN2, PACKED])
def test_a_tied_head_that_equals_the_embedding_may_be_there(name, tmp_path):
    folder = with_head(name, tmp_path / "checkpoint", lambda _, tensor: tensor)
    assert "lm_head.weight" not in load_checkpoint(folder).weights


def last_number_changed(tensor):
    flat = tensor.reshape(-1)
    flat[-1] = flat[-1] + 1
    return flat.reshape(tensor.shape)


OWN_HEADS = [last_number_changed, lambda tensor: tensor[:1], lambda tensor: tensor.astype(mx.float16)]


@pytest.mark.parametrize("name", [QWEN3, PACKED])
@pytest.mark.parametrize("change", OWN_HEADS)
def test_a_tied_head_of_its_own_is_refused(name, change, tmp_path):
    folder = with_head(
        name,
        tmp_path / "checkpoint",
        lambda key, tensor: change(tensor) if key.endswith("weight") else tensor,
    )
    says = "lm_head.weight differs from model.embed_tokens in dtype, shape or numbers, but config.json has "
    cure = "set it to false to use that output head"
    assert complaint(folder) == f"{folder}/model.safetensors: {says}tie_word_embeddings true: {cure}"


def test_a_difference_is_found_wherever_it_is(tmp_path):
    """The last byte of a tensor that is compared in several pieces."""
    name = "random:qwen3-shrunk,vocab=20000,layers=1"  # an embedding of 5 MB
    folder = with_head(name, tmp_path / "checkpoint", lambda _, tensor: last_number_changed(tensor))
    assert "lm_head.weight differs" in complaint(folder)
    load_checkpoint(with_head(name, tmp_path / "same", lambda _, tensor: tensor))


def test_an_embedding_model_is_refused_by_its_names(copy):
    folder = copy(QWEN3)
    save_tensors(folder, {name.removeprefix("model."): tensor for name, tensor in tensors_of(folder).items()})
    assert complaint(folder) == (
        f'{folder}: its tensor names do not begin with "model.", like an embedding model\'s: '
        "serve it with --task embed, or choose a checkpoint that generates text"
    )


NOT_FINITE = [
    (PACKED, "model.norm.weight"),
    (PACKED, "model.layers.1.self_attn.k_norm.weight"),
    (PACKED, f"{Q_PROJ}.scales"),
    (PACKED, f"{Q_PROJ}.biases"),
    (QWEN3, f"{Q_PROJ}.weight"),
    (f"{QWEN3},bits=16", "model.layers.2.mlp.down_proj.weight"),
    (QWEN2, "model.embed_tokens.weight"),
    (QWEN2, "model.layers.1.self_attn.v_proj.bias"),
]


@pytest.mark.parametrize(("name", "tensor"), NOT_FINITE)
@pytest.mark.parametrize("value", [mx.nan, -mx.nan, mx.inf, -mx.inf])
def test_one_number_that_is_not_finite_is_refused(copy, name, tensor, value):
    folder = copy(name)
    broken = tensors_of(folder)[tensor]
    broken[(-1,) * broken.ndim] = value
    edit_tensors(folder, {tensor: broken})
    assert complaint(folder) == (
        f"{folder}/model.safetensors: tensor {tensor} has NaN or infinite numbers: fetch the file again"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_of_a_dtype_are_finite(copy, dtype, sign):
    folder, kind = copy(QWEN3), DTYPES[dtype]
    largest = mx.full((128, 64), sign * mx.finfo(kind).max, kind)
    edit_tensors(folder, {f"{Q_PROJ}.weight": largest})
    assert load_checkpoint(folder, dtype=dtype).weights.keys()


def test_a_number_that_the_wanted_dtype_cannot_hold_is_not_called_damage(copy):
    folder = copy(QWEN3)
    edit_tensors(folder, {f"{Q_PROJ}.weight": mx.full((128, 64), 1e5, mx.bfloat16)})
    load_checkpoint(folder)
    said = complaint(folder, dtype="float16")
    assert said.endswith(f"{Q_PROJ}.weight has numbers outside the range of float16: choose another --dtype")


# Files of a checkpoint that cannot be read: links to nothing, pipes, devices, permissions, sizes


AGAIN = "fetch the whole checkpoint again"
WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
READ = (WEIGHTS, CONFIG, "tokenizer.json", "tokenizer_config.json", "generation_config.json")
SHARD = "model-00002-of-00003.safetensors"


def replaced(name, make):
    def damage(folder):
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


def unfinished(path):
    """A snapshot of the hub's cache whose blob is not there."""
    path.symlink_to("../../blobs/abc")


UNFINISHED = f"it links to a missing file, because its download did not finish: {AGAIN}"
NOT_REGULAR = f"not a regular file: {AGAIN}"
LOOP = f"cannot open it ({os.strerror(errno.ELOOP)}): {AGAIN}"
NO_NAMES = "it has no weight_map of file names: fetch the file again"
CASES = [
    *((replaced(name, unfinished), name, UNFINISHED) for name in (*READ, INDEX)),
    (lambda folder: (shard(folder), replaced(SHARD, unfinished)(folder)), SHARD, UNFINISHED),
    *((replaced(name, lambda path: path.symlink_to(path.name)), name, LOOP) for name in (WEIGHTS, CONFIG)),
    *((replaced(name, os.mkfifo), name, NOT_REGULAR) for name in READ),
    *((replaced(name, lambda path: path.symlink_to("/dev/zero")), name, NOT_REGULAR) for name in READ),
    (replaced(WEIGHTS, Path.mkdir), WEIGHTS, NOT_REGULAR),
    (overwritten(INDEX, b'{"weight_map": {"a": "%s"}}' % (b"x" * 5000)), INDEX, NO_NAMES),
]


@pytest.mark.parametrize(("damage", "file", "says"), CASES, ids=[f"{file}-{says}" for _, file, says in CASES])
def test_a_file_that_cannot_be_read_is_one_line(copy, damage, file, says):
    folder = copy("random:qwen3-shrunk")
    damage(folder)
    assert complaint(folder) == f"{folder / file}: {says}"


@pytest.mark.parametrize("file", READ)
def test_a_file_that_may_not_be_read_is_not_called_damaged(copy, file, monkeypatch):
    """The system's answer is imitated: to root it gives another one."""
    folder, opened = copy("random:qwen3-shrunk"), Path.open

    def refused(path, *args, **kwargs):
        if path == folder / file:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    assert complaint(folder) == f"{folder / file}: you may not read it: use chmod, or run as its owner"


@pytest.mark.parametrize("file", [CONFIG, "generation_config.json"])
def test_a_config_of_megabytes_is_refused_by_its_size(copy, file):
    folder, limit = copy("random:qwen3-shrunk"), 4 << 20
    os.truncate(folder / file, limit)
    assert "cannot read it (Extra data" in complaint(folder)
    os.truncate(folder / file, limit + 1)
    assert complaint(folder) == f"{folder / file}: larger than {limit} bytes: fetch the file again"

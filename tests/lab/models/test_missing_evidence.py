"""What a checkpoint does not say is not guessed, and what a header says is harmless."""

import json

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.checkpoints import complaint, edit_json, tensors_of

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.runtime.models.weights.layout import NORM
from tiny_llm_lab.runtime.models.weights.safetensors_file import read_header
from tiny_llm_lab.types import UserError

WHOLE = ("random:qwen3.5-shrunk,interval=1", "random:qwen3.5-moe-shrunk,interval=1")
NO_FORMAT = "says whether its norms lack their 1: save it again with transformers or mlx-lm"
ESCAPES = "\x1b[31mred\x07\r\x9b2J\u202e"


def saved_as(folder, metadata):
    mx.save_safetensors(str(folder / "model.safetensors"), tensors_of(folder), metadata)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(("written_by", "added"), [("pt", 1.0), ("mlx", 0.0), ("np", None), ("", None)])
def test_norms_of_attention_alone_are_as_their_writer_has_them(copy, name, written_by, added):
    """Nothing but conv1d's shape tells them apart, and these have no conv1d."""
    folder = copy(name)
    stored = np.array(tensors_of(folder)[NORM])
    saved_as(folder, {"format": written_by} if written_by else {})
    if added is None:
        assert complaint(folder).endswith(NO_FORMAT)
    else:
        np.testing.assert_array_equal(np.array(load_checkpoint(folder).weights[NORM]), stored + added)


def test_shards_of_two_writers_are_no_evidence(copy):
    folder = copy(WHOLE[0])
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    for number, kind in enumerate(("pt", "mlx")):
        part = {name: each for i, (name, each) in enumerate(sorted(tensors.items())) if i % 2 == number}
        mx.save_safetensors(str(folder / f"model-{number}.safetensors"), part, {"format": kind})
    assert complaint(folder).endswith(NO_FORMAT)


@pytest.mark.parametrize("metadata", [{"format": "mlx"}, {}])
def test_the_shape_of_a_convolution_says_more_than_the_writer(copy, metadata):
    folder = copy("random:qwen3.5-shrunk")
    stored = np.array(tensors_of(folder)[NORM])
    saved_as(folder, metadata)
    np.testing.assert_array_equal(np.array(load_checkpoint(folder).weights[NORM]), stored + 1)


NO_ATTENTION = [{"full_attention_interval": 9}, {"layer_types": ["linear_attention"] * 5}]


@pytest.mark.parametrize("changes", NO_ATTENTION)
def test_a_hybrid_without_attention_is_refused(copy, changes):
    folder = copy("random:qwen3.5-shrunk", **{"full_attention_interval": ..., **changes})
    said = "a hybrid needs a layer with full_attention, and this one has none"
    assert said in complaint(folder)


@pytest.mark.parametrize(("value", "is_read"), [(False, False), (True, True), (None, True)])
@pytest.mark.parametrize("name", ["random:qwen3.5-moe-shrunk", "random:qwen3-next-shrunk"])
def test_qwen3_5_moe_always_divides_by_the_sum(copy, name, value, is_read):
    folder = copy(name, norm_topk_prob=value)
    if is_read or "next" in name:
        assert load_checkpoint(folder).config.norm_topk_prob == (value is not False)
    else:
        assert "norm_topk_prob false is not supported in qwen3_5_moe: remove the line" in complaint(folder)


def header(folder, tensors):
    text = json.dumps(tensors).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    return file


def test_a_header_of_a_million_tensors_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    empty = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    text = b"{" + b",".join(b'"%d":%s' % (each, empty) for each in range(1_000_000)) + b"}"
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it is parsed"))
    with pytest.raises(UserError, match="its header has more than 200000 tensors"):
        read_header(tmp_path / "model.safetensors")


def _tensor_name(folder):
    header(folder, {ESCAPES: {"dtype": "F32", "shape": [1], "data_offsets": [0, 9]}})


def _leftover(folder):
    tensors = tensors_of(folder) | {f"model.{ESCAPES}.weight": mx.zeros((1,))}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)


def _config(key, value):
    return lambda folder: edit_json(folder / "config.json", **{key: value})


def _template(folder):
    text = "{{ raise_exception('" + ESCAPES + "') }}"
    edit_json(folder / "tokenizer_config.json", chat_template=text)


def _shard(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": f"{ESCAPES}.x"}}))


HOSTILE = {
    "a tensor's name": _tensor_name,
    "a tensor that is not the model's": _leftover,
    "a file's name": _shard,
    "the type": _config("model_type", ESCAPES),
    "an activation": _config("hidden_act", ESCAPES),
    "a number": _config("vocab_size", ESCAPES),
    "an unknown key": _config(ESCAPES, 5),
    "a quantization": _config("quantization_config", {"quant_method": ESCAPES}),
    "a module of it": _config("quantization", {"bits": 4, "group_size": 64, ESCAPES: {"bits": 7}}),
    "a kind of positions": _config("rope_scaling", {"rope_type": ESCAPES}),
    "a template": _template,
}


@pytest.mark.parametrize("place", HOSTILE)
def test_no_name_of_a_downloaded_file_reaches_the_terminal_as_it_is(copy, place, capsys):
    folder = copy("random:qwen3-shrunk")
    HOSTILE[place](folder)
    code = cli.main(f"main --model {folder} --prompt x --max-tokens 1 --solution ref".split())
    err = capsys.readouterr().err
    assert code == (0 if place == "an unknown key" else 2), err
    lines = err.strip().splitlines()
    assert any("\\x1b[31m" in line for line in lines), err
    assert not any(set(line) & set("\x1b\x07\r\x9b\u202e") for line in lines)

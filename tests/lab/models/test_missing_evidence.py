"""What a checkpoint does not say is not guessed, and what a header says is harmless."""

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.checkpoints import complaint, copy_of, edit_json, tensors_of
from tests.helpers.pooling_checkpoints import NO, YES, embedding_folder, reranker_folder

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.runtime.models.weights.parameters import NORM
from tiny_llm_lab.runtime.models.weights.safetensors_file import read_header
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
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


@pytest.mark.parametrize(
    "changes", [{"full_attention_interval": 9}, {"layer_types": ["linear_attention"] * 5}]
)
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
    code = cli.main(
        ["main", "--model", str(folder), "--prompt", "x", "--max-tokens", "1", "--solution", "ref"]
    )
    err = capsys.readouterr().err
    assert code == (0 if place == "an unknown key" else 2), err
    lines = err.strip().splitlines()
    assert any("\\x1b[31m" in line for line in lines), err
    assert not any(set(line) & set("\x1b\x07\r\x9b\u202e") for line in lines)


# Checkpoints that embed or score: how they are found, and which are refused


QWEN3, PACKED = "random:qwen3-shrunk", "random:qwen3-shrunk,bits=4,tied=0"


def test_the_checkpoint_says_what_it_is_for(tmp_path):
    folder = embedding_folder(QWEN3, tmp_path / "embedder")
    assert load_checkpoint(str(folder), task="auto").config.task == "embed"
    assert load_checkpoint(QWEN3, task="auto").config.task == "generate"
    assert load_checkpoint(QWEN3, task="embed").config.task == "embed"


@pytest.mark.parametrize("name", [QWEN3, PACKED])
def test_names_without_a_prefix_are_those_of_the_model(name, tmp_path):
    made = load_checkpoint(str(embedding_folder(name, tmp_path / "embedder")), task="auto")
    whole = load_checkpoint(name)
    assert made.weights.keys() == whole.weights.keys() | {"lm_head.weight"}
    for parameter in whole.weights.keys() - {"lm_head.weight"}:
        a, b = (each.weights[parameter] for each in (made, whole))
        parts = [(a, b)] if isinstance(a, mx.array) else zip(vars(a).values(), vars(b).values(), strict=True)
        assert all(mx.array_equal(x, y) if isinstance(x, mx.array) else x == y for x, y in parts), parameter


def test_the_head_of_a_reranker_has_the_rows_of_no_and_yes(tmp_path):
    for i, (name, rows) in enumerate({QWEN3: "model.embed_tokens.weight", PACKED: "lm_head.weight"}.items()):
        folder = reranker_folder(name, tmp_path / str(i))
        whole = load_checkpoint(str(folder)).weights[rows]
        dense = whole if isinstance(whole, mx.array) else whole.dequantized()
        head = load_checkpoint(str(folder), task="score").weights["lm_head.weight"]
        assert mx.array_equal(head, dense[mx.array([NO, YES])])


def test_a_reranker_of_sentence_transformers(tmp_path):
    folder = reranker_folder(QWEN3, tmp_path / "reranker")
    (folder / "modules.json").write_text("[]")
    (folder / "1_LogitScore").mkdir()
    config = folder / "1_LogitScore" / "config.json"
    edit_json(config, true_token_id=YES, false_token_id=NO)
    assert load_checkpoint(str(folder), task="auto").config.task == "score"
    edit_json(config, true_token_id=NO, false_token_id=YES)
    assert "it does not score with" in complaint(folder, task="auto")


def test_vectors_are_not_drafted():
    settings = ModelSettings(QWEN3, engine=EngineSettings(speculate="ngram"), task="embed")
    with pytest.raises(UserError, match="leave out --speculate"):
        load_and_build(settings)


def test_what_is_refused(tmp_path):
    folder = embedding_folder(QWEN3, tmp_path / "embedder")
    assert "serve it with --task embed" in complaint(folder)
    assert "serve it with --task embed" in complaint(folder, task="score")
    assert "it does not score with" in complaint(copy_of(QWEN3, tmp_path / "plain"), task="score")
    (folder / "3_Dense").mkdir()
    assert "the module 3_Dense is not supported" in complaint(folder, task="auto")
    shutil.rmtree(folder / "3_Dense")
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode_lasttoken=..., pooling_mode="lasttoken")
    load_checkpoint(str(folder), task="auto")
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode="mean")
    assert "not pooling_mode_lasttoken" in complaint(folder, task="auto")
    shutil.rmtree(folder / "1_Pooling")
    assert "1_Pooling/config.json: missing" in complaint(folder, task="auto")

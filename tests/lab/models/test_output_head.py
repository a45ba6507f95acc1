"""Checkpoints that embed or score: how they are found, and which are refused."""

import shutil

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import complaint, copy_of, edit_json
from tests.helpers.pooling_checkpoints import NO, YES, embedding_folder, reranker_folder

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.types import UserError

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

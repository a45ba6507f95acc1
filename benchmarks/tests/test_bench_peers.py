"""`bench --baselines` of ONNX Runtime, MNN and llama.cpp: what they are asked, by engines that note it."""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.peers import mnn_program, onnxruntime_program
from benchmarks.peers.llama_batches import Batches

ASKED = {"path": "folder", "lengths": [5, 9, 4], "vocab_size": 320, "seed": 0, "threads": 2, "options": []}


@pytest.fixture
def module(monkeypatch):
    """Any module, which notes what it is asked."""
    noting = MagicMock(__version__="1.2")
    for name in ("MNN", "onnxruntime_genai"):
        monkeypatch.setitem(sys.modules, name, noting)
    monkeypatch.setitem(sys.modules, "MNN.llm", noting.llm)
    return noting


def test_a_run_is_a_warm_up_prompt_and_a_prompt_with_steps(module):
    answer, model = mnn_program.measure(**ASKED, streams=1), module.llm.create.return_value
    assert [len(call.args[0]) for call in model.forward.call_args_list] == [5, 1, 1, 9, 1, 1, 1]
    model.set_config.assert_called_once_with({"thread_num": 2})
    assert (len(answer["prefill_s"]), len(answer["steps_s"])) == (1, 3)
    assert answer["took_s"] == pytest.approx(sum(answer["prefill_s"] + answer["steps_s"]))
    with pytest.raises(SystemExit, match="one stream"):
        mnn_program.measure(**ASKED, streams=2)


def test_onnxruntime_computes_all_prompts_together(module):
    onnxruntime_program.measure(**ASKED, streams=3)
    generator = module.Generator.return_value
    assert [call.args[0].shape for call in generator.append_tokens.call_args_list] == [(3, 5), (3, 9)]
    assert generator.generate_next_token.call_count == 3 + 4, "an answer's first, too"
    assert '"intra_op_num_threads": 2' in module.Config.return_value.overlay.call_args.args[0]


def test_llama_computes_prompts_one_by_one_and_steps_together(monkeypatch):
    computed, n = [], range(64)
    batch = SimpleNamespace(token=[*n], pos=[*n], n_seq_id=[*n], seq_id=[[0] for _ in n], logits=[*n])

    def decode(context, batch):
        computed.append([(batch.seq_id[i][0], batch.pos[i], batch.logits[i]) for i in n[: batch.n_tokens]])
        return batch.n_tokens == 7

    api = SimpleNamespace(llama_batch_init=lambda *_: batch, llama_decode=decode, llama_batch_free=id)
    engine = Batches(api, "context", lambda: computed.append("cleared"))
    assert len(engine.prefill(np.zeros((2, 3), int))) == 2 and engine.step(np.zeros(2, int)) >= 0
    prompts = [[(row, place, place == 2) for place in range(3)] for row in range(2)]
    assert computed == ["cleared", *prompts, [(0, 3, True), (1, 3, True)]]
    with pytest.raises(RuntimeError, match="returns True for a batch of 7"):
        engine.prefill(np.zeros((1, 7), int))

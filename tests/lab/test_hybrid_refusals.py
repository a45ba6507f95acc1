"""What hybrids answer, what their memory takes, and which models draft for them."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab import LLM, load_checkpoint, load_solution
from tiny_llm_lab.runtime import kv_memory
from tiny_llm_lab.serving.drafting import require_draft
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.serving.options.model_options import load
from tiny_llm_lab.types import SamplingParams, SchedulerConfig, UserError
from tiny_llm_lab.types.computing.hybrid import DeltaNetSizes, HybridConfig, MixerKind

HYBRID = "random:qwen3.5-shrunk"
SAMPLING = SamplingParams(max_tokens=9, ignore_eos=True)


def test_a_hybrid_answers():
    """The engine's answer is week 2's loop's."""
    checkpoint = load_checkpoint(HYBRID)
    model, prompt = load_solution("ref").build_model(checkpoint), [5, 6, 7, 8, 9] * 8
    (want,) = load_solution("ref").batch_generate(model, checkpoint.tokenizer, [prompt], sampling=SAMPLING)
    with LLM(
        HYBRID, config=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=64)
    ) as llm:
        assert llm.generate([prompt], SAMPLING)[0].token_ids == want.token_ids


def test_a_checkpoint_drafts_with_its_own_layer():
    """Its answers are those without drafts."""
    prompts, config = [[5, 6, 7, 8, 9] * 8, [3] * 20], SchedulerConfig(max_model_len=64)
    with LLM(HYBRID, config=config) as llm:
        want = [each.token_ids for each in llm.generate(prompts, SAMPLING)]
    with LLM(f"{HYBRID},mtp=1", config=config, speculate="mtp", draft_gate=False) as llm:
        assert [each.token_ids for each in llm.generate(prompts, SAMPLING)] == want


def test_what_a_request_takes(monkeypatch):
    """Two layers of keys and values, and three states that any length has."""
    config = load_checkpoint(HYBRID).config
    assert kv_memory.block_bytes(config, mx.float32, 16) == 2 * 2 * 2 * 32 * 16 * 4
    asked: list[int] = []
    monkeypatch.setattr(kv_memory, "require_fit", lambda what, whole, *others: asked.append(whole))
    kv_memory.require_dense_fit(config, mx.float32, 3, 16, "choose fewer")
    kv_memory.require_dense_fit(config, mx.float32, 3, 32, "choose fewer")
    states = 3 * (4 * 16 * 24 + 3 * (2 * 32 + 96)) * 4
    assert asked == [3 * (16384 + states), 3 * (2 * 16384 + states)]


def test_the_state_of_a_sequence_of_the_9b():
    """48 MiB of matrices, and three tokens of conv inputs in each layer, whatever the length."""
    sizes = DeltaNetSizes(16, 32, 128, 128, conv_kernel=4)
    mixers: tuple[MixerKind, ...] = ("linear_attention",) * 24 + ("full_attention",) * 8
    hybrid = HybridConfig(mixers, sizes, rotary_dims=64)
    assert hybrid.state_bytes == (48 << 20) + 24 * 3 * (2 * 16 + 32) * 128 * 4


COSTLY = [
    ("default", "default-hybrid", "default-hybrid is larger than the model that it drafts for"),
    ("default-hybrid", "random:qwen3-0.6b,layers=1,vocab=512,bits=4", "is larger than the model"),
]


@pytest.mark.parametrize(("model", "draft", "says"), COSTLY)
def test_a_draft_model_that_costs_more_is_refused(model, draft, says):
    with pytest.raises(UserError, match=says):
        LLM(model, speculate=f"draft:{draft}")


def test_a_draft_model_of_another_kind_is_refused():
    """In one line each: a hybrid for a dense model, and another tokenizer."""
    dense, hybrid = (load(ModelSettings(name)) for name in ("default", "default-hybrid"))
    small = replace(hybrid, model=Sized(replace(hybrid.model.config, num_hidden_layers=1, vocab_size=9)))
    with pytest.raises(UserError, match="hybrids only"):
        require_draft(small, dense)
    other = replace(dense, checkpoint=replace(dense.checkpoint, tokenizer=ByteTokenizer()))
    with pytest.raises(UserError, match="another tokenizer"):
        require_draft(other, dense)
    require_draft(dense, hybrid)
    with pytest.raises(UserError, match="below max_num_batched_tokens"):
        EngineSettings(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2), num_speculative_tokens=8)


class Sized:
    """A model of which only the configuration is asked for."""

    def __init__(self, config):
        self.config = config

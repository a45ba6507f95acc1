"""The engine behind one name, on the shipped model."""

import sys
from dataclasses import replace

import pytest
from tests.helpers.processes import finished

from tiny_llm_lab import LLM, AsyncLLM, SamplingParams
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, model_settings
from tiny_llm_lab.types import DoneEvent, Prompt, SchedulerConfig, StructuredOutputs, TokenEvent, UserError

SHORT = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def llm():
    with LLM() as llm:
        yield llm


def test_prompts_are_continued_in_order(llm):
    done = llm.generate(["Hello", [5, 6, 7], Prompt("Once", SamplingParams(max_tokens=3))], SHORT)
    assert [each.prompt_idx for each in done] == [0, 1, 2]
    assert [each.num_prompt_tokens for each in done][1] == 3
    assert len(done[2].token_ids) == 3, "a prompt's own parameters come first"
    assert llm.generate("Hello", SHORT)[0].token_ids == done[0].token_ids, "one prompt is a list of one"


def test_questions_are_asked_in_the_template(llm):
    question = "Who are you?"
    answer, conversation = llm.chat([question, [{"role": "user", "content": question}]], SHORT)
    assert answer.text.startswith("I am")
    assert conversation.text == answer.text
    assert answer.num_prompt_tokens > llm.generate(question, SHORT)[0].num_prompt_tokens


USER = {"role": "user", "content": "Who are you?"}


@pytest.mark.parametrize(
    "wrong", [[USER], [[]], [()], [[{"role": "user"}]], [[{"content": "x"}]], [[USER, "x"]]]
)
def test_what_is_no_conversation_is_refused_in_a_line(llm, wrong):
    """One conversation as vLLM takes it, and one without a message, which would be answered anyway."""
    with pytest.raises(UserError, match="a conversation must be a list of"):
        llm.chat(wrong)
    assert llm.chat([[USER]], SamplingParams(max_tokens=3))[0].text


def test_events_and_refusals(llm):
    seen = []
    (done,) = llm.generate([[]], on_event=seen.append)
    assert done.finish_reason == "error"
    assert "empty" in done.error
    assert seen == [DoneEvent(done)]


def test_a_prompts_own_processors_run_beside_the_form_of_its_answer(llm):
    seen = []

    def watch(logits, prompt, answer):
        seen.append(list(answer))
        return logits

    form = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputs(choice=("yes", "no")))
    (done,) = llm.generate([Prompt("Is it?", form, processors=(watch,))])
    assert done.text in ("yes", "no")
    assert seen[0] == [], "the prompt's processor was called before the first token"


def test_tokens_without_their_text(llm):
    sampling = SamplingParams(max_tokens=9, ignore_eos=True)
    [told], events = llm.generate(["Hello"], sampling), []
    [alone] = llm.generate(["Hello"], replace(sampling, detokenize=False), on_event=events.append)
    assert (alone.token_ids, alone.finish_reason, alone.text) == (told.token_ids, told.finish_reason, "")
    assert told.text and [each.text for each in events if isinstance(each, TokenEvent)] == [""] * 9


def test_settings_reach_the_engine():
    plans = []
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4, max_model_len=64)
    with LLM(config=config, on_step=lambda plan, stats: plans.append(plan), kv_cache_memory="1M") as llm:
        llm.generate([[7] * 20], SamplingParams(max_tokens=2, ignore_eos=True))
    assert [plan.total_num_scheduled_tokens for plan in plans] == [8, 8, 4, 1]
    with pytest.raises(UserError, match="unknown"):
        LLM("no-such-model-anywhere")


BAD_SETTINGS = [
    ("speculate", "often"),
    ("speculate", "draft:"),
    ("kv_cache_dtype", "int4"),
    ("itl_slo_ms", 0.0),
    ("num_speculative_tokens", 0),
    ("threads", 0),
]


@pytest.mark.parametrize(("keyword", "value"), BAD_SETTINGS)
def test_a_setting_that_no_engine_has_is_refused_before_a_model_is_loaded(keyword, value):
    with pytest.raises(UserError, match=f"{keyword}.* must be"):
        LLM("no-such-model-anywhere", **{keyword: value})


def test_flags_of_the_server_are_keywords_too():
    with LLM(kv_cache_dtype="int8", speculate="ngram", threads=1, device="cpu", kv_cache_memory="1M") as llm:
        assert llm.engine.core.options.kv_bits == 8
        assert llm.generate("Once", SHORT)[0].text
        assert llm.engine.core.spec_stats is not None


NO_SETTINGS = ["tensor_parallel_size", "task", "fits_steps", "engine", "batch_size", "port", "kv_cache_memry"]


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
@pytest.mark.parametrize("keyword", NO_SETTINGS)
def test_what_is_no_setting_of_an_engine_is_refused_before_anything_is_loaded(kind, keyword):
    # Some of them are settings of commands: to take one and leave it out would be worse.
    with pytest.raises(TypeError, match=keyword):
        kind("no-such-folder", **{keyword: 2})


def test_a_record_of_settings_is_changed_by_keywords():
    config = SchedulerConfig(max_model_len=64)
    settings = EngineSettings(config, block_size=4, speculate="ngram")
    given = model_settings("m", settings, {"threads": 1, "block_size": 8})
    assert given.threads == 1 and given.max_model_len == 64
    assert given.engine == replace(settings, block_size=8)
    free = model_settings("m", EngineSettings(), {"config": None})
    assert free.max_model_len is None and free.fits_steps
    assert not model_settings("m", EngineSettings(), {"itl_slo_ms": 20.0}).fits_steps
    short = model_settings("m", EngineSettings(), {"max_model_len": 100, "max_num_seqs": 3})
    assert short.max_model_len == 100 and short.engine.config.max_num_seqs == 3 and short.fits_steps
    few = model_settings("m", settings, {"max_num_batched_tokens": 7, "max_num_seqs": 2})
    assert few.engine.config == replace(config, max_num_batched_tokens=7, max_num_seqs=2)
    assert few.max_model_len == 64 and not few.fits_steps


IN_FLIGHT = """
from tiny_llm_lab import LLM, SamplingParams
llm = LLM("random:qwen3-shrunk,layers=60,hidden=512,inner=2048", async_scheduling=True, max_model_len=400)
for name in "abcdefgh":
    llm.engine.add(name, [5] * 30, SamplingParams(max_tokens=300, ignore_eos=True))
for _ in range(6):
    llm.engine.step()
llm.engine.core.abort_all()
"""


@pytest.mark.usefixtures("kernels_on")
def test_a_program_may_end_while_a_step_is_in_flight():
    """MLX's thread then frees what the operators hold, and must not wait for the interpreter."""
    done = finished([sys.executable, "-c", IN_FLIGHT])
    assert (done.returncode, done.stderr) == (0, "")

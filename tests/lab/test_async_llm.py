"""The engine for asyncio behind one name, on the shipped model."""

import asyncio

import pytest

from tiny_llm_lab import LLM, AsyncLLM, SamplingParams
from tiny_llm_lab.serving.async_engine.model import EngineThread
from tiny_llm_lab.types import SchedulerConfig, UserError

SHORT = SamplingParams(max_tokens=12)
TWELVE = SamplingParams(max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=3000, ignore_eos=True)


def with_llm(scenario):
    async def run():
        async with AsyncLLM(kv_cache_memory="64M") as llm, asyncio.timeout(60):
            await scenario(llm)

    asyncio.run(run())


def test_text_comes_in_pieces_that_make_the_answer():
    async def scenario(llm):
        outputs = [output async for output in llm.chat("Who are you?", SHORT)]
        done = outputs[-1].completion
        assert done is not None and done.text == "".join(output.text for output in outputs)
        assert done.text.startswith("I am") and len(outputs) > 1
        with LLM(kv_cache_memory="64M") as same:
            assert same.chat("Who are you?", SHORT)[0].token_ids == done.token_ids

    with_llm(scenario)


def test_prompts_of_text_and_of_tokens_are_served_together():
    async def last(llm, prompt):
        outputs = [output async for output in llm.generate(prompt, TWELVE)]
        done = outputs[-1].completion
        assert done is not None
        return done.num_prompt_tokens, len(done.token_ids)

    async def scenario(llm):
        found = await asyncio.gather(last(llm, [5, 6, 7]), last(llm, "Hello"))
        assert found[0] == (3, 12) and found[1][1] == 12

    with_llm(scenario)


def num_output_tokens(llm):
    link = llm._running.engine._link
    assert isinstance(link, EngineThread)
    running = link.built.engine.core.scheduler.running
    return [len(sequence.output_token_ids) for sequence in list(running)]


def test_a_loop_that_is_left_ends_its_request():
    async def scenario(llm):
        async for _ in llm.generate([5, 6, 7], ENDLESS, request_id="mine"):
            with pytest.raises(UserError, match="mine"):
                await anext(llm.generate([5], SHORT, request_id="mine"))
            break
        assert [output async for output in llm.generate([5, 6, 7], SHORT)], "others go on"
        while lengths := num_output_tokens(llm):
            assert max(lengths) < 2000, "of 3000"
            await asyncio.sleep(0)

    with_llm(scenario)


def test_what_cannot_be_served_is_refused():
    with pytest.raises(RuntimeError, match="async with"):
        AsyncLLM().chat("Hello")

    async def unknown():
        async with AsyncLLM("no-such-model-anywhere"):
            pass

    with pytest.raises(UserError, match="unknown"):
        asyncio.run(unknown())

    async def too_long():
        config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=64)
        async with AsyncLLM(config=config, kv_cache_memory="1M") as llm:
            with pytest.raises(UserError, match="64"):
                await anext(llm.generate([5] * 65, SHORT))

    asyncio.run(too_long())

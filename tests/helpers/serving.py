"""Running an engine to its end, and the requests that its tests run."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.helpers.toy import ByteTokenizer, random_tokens

from tiny_llm_lab.types import (
    Completion,
    DoneEvent,
    EngineOptions,
    Event,
    Prompt,
    SamplingParams,
    SchedulerConfig,
    TokenLogprobs,
)

LONG = SamplingParams(max_tokens=8, ignore_eos=True)


def mixed_prompts() -> list[Prompt]:
    """Short and long, greedy and drawn, with stop strings, one token long, and three that begin alike."""
    common = random_tokens(5, 70).tolist()

    def prompt(tokens: int, length: int, **sampling: Any) -> Prompt:
        return Prompt(random_tokens(tokens, length).tolist(), SamplingParams(**sampling))

    return [
        prompt(1, 150, max_tokens=12, ignore_eos=True),
        prompt(2, 3, max_tokens=20, ignore_eos=True),
        prompt(3, 40, max_tokens=16, temperature=0.9, top_p=0.9, seed=7),
        prompt(4, 1, max_tokens=1),
        *(Prompt([*common, i], SamplingParams(max_tokens=8, ignore_eos=True)) for i in (1, 2, 3)),
        prompt(6, 33, max_tokens=15, temperature=1.2, top_k=20, seed=8, ignore_eos=True),
    ]


def four_prompts() -> list[Prompt]:
    return [Prompt(random_tokens(i, 12 + i).tolist(), LONG) for i in range(4)]


def serve(
    engine: Any,
    prompts: Sequence[Prompt],
    arrival_steps: Mapping[int, int] | None = None,
    abort_steps: Mapping[int, int] | None = None,
) -> dict[int, Completion]:
    """Answer `prompts` by number; some arrive, or are aborted, before the given step."""
    arrivals, aborts = arrival_steps or {}, abort_steps or {}
    waiting = list(range(len(prompts)))
    done: dict[int, Completion] = {}
    step = 0
    while waiting or engine.has_requests:
        for i in [i for i in waiting if arrivals.get(i, 0) <= step]:
            waiting.remove(i)
            prompt = prompts[i]
            engine.add(str(i), prompt.content, prompt.sampling, priority_class=prompt.priority_class)
        for i in [i for i, at in aborts.items() if at == step]:
            engine.abort(str(i))
        for output in engine.step():
            if output.completion is not None:
                assert int(output.request_id) not in done, "a request ends once"
                done[int(output.request_id)] = output.completion
        engine.core.scheduler.check()
        step += 1
        assert step < 5000, "the engine does not come to an end"
    return done


def make_engine(llm: Any, model: Any, config: Any = None, **kwargs: Any) -> Any:
    options = EngineOptions(**({"num_blocks": 256} | kwargs))
    return llm.Engine(model, ByteTokenizer(), config or SchedulerConfig(), options)


def idx_of(event: Event) -> int:
    return event.completion.prompt_idx if isinstance(event, DoneEvent) else event.prompt_idx


def logprobs_of(engine: Any, prompt: Prompt) -> list[TokenLogprobs]:
    """All that the engine says about the tokens of `prompt`."""
    engine.add("asks", prompt.content, prompt.sampling)
    found: list[TokenLogprobs] = []
    tokens: list[int] = []
    while engine.has_requests:
        for output in engine.step():
            found += output.logprobs
            tokens += output.token_ids
    assert [each.token_id for each in found] == tokens, "one for each token, in order"
    return found

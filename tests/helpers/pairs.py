"""Two requests in the same steps, each with another feature, get what each gets alone."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.fuzz_answers import Outcome, is_near_tie
from tests.helpers.fuzz_cases import Barring
from tests.helpers.toy import ByteTokenizer, toy_model

from tiny_llm_lab.runtime import native
from tiny_llm_lab.types import EngineOptions, Prompt, SamplingParams, SchedulerConfig

SIZE = 4
COMMON = [97, 98, 99] * 4
PROMPTS = [[*COMMON, 120, 97], [65, 66, 67, *COMMON[:9], 121, 98]]  # equally long
DRAWN = SamplingParams(max_tokens=11, ignore_eos=True, temperature=0.9)


class Form:
    """Even and odd tokens in turns, and as a grammar does it remembers what it has followed."""

    def __init__(self):
        self.followed = []

    def __call__(self, logits, prompt, answer):
        common = 0
        while common < min(len(self.followed), len(answer)) and self.followed[common] == answer[common]:
            common += 1
        self.followed = [*self.followed[:common], *answer[common:]]
        return mx.where(mx.arange(len(logits)) % 2 == len(self.followed) % 2, logits, -mx.inf)


@dataclass(frozen=True)
class Feature:
    """What a request asks, and what the engine that serves it does besides."""

    sampling: dict = field(default_factory=dict)
    processors: tuple = ()
    options: dict = field(default_factory=dict)
    is_shared: bool = False  # both requests have the first one's prompt


FEATURES = {
    "greedy": Feature({"temperature": 0.0}),
    "prompt logprobs": Feature({"prompt_logprobs": 2, "logprobs": 1}),
    "form": Feature(processors=(Form,)),
    "processors": Feature(processors=(Barring, Form)),
    "penalties": Feature({"repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": -0.4}),
    "biases": Feature({"logit_bias": {97: 9.0, 98: -9.0}, "min_tokens": 4, "stop_token_ids": (99, 100)}),
    "seed 0": Feature({"seed": 0, "top_k": 20}),
    "last seed": Feature({"seed": 2**64 - 1, "top_p": 0.9}),
    "n": Feature({"seed": 2**63 - 1}, is_shared=True),
    "stop": Feature({"stop": ("a", "e"), "logprobs": 0}),
    "drafts": Feature(options={"proposer": "itself"}),
    "8 bits": Feature(options={"kv_bits": 8}),
    "no prefix cache": Feature(options={"enable_prefix_caching": False}),
    "preemption": Feature(options={"num_blocks": 9}),
    "ahead": Feature(options={"async_scheduling": True}),
}


class Served:
    """A model, and what it answers to each request alone."""

    def __init__(self, model, is_exact):
        self.model, self.is_exact = model, is_exact
        self.alone = {}

    def serve(self, llm, pair):
        features = [FEATURES[name] for name in pair]
        is_shared = any(each.is_shared for each in features)
        options = features[0].options | features[1].options
        engine = engine_of(llm, self.model, options)
        for order in ((0, 1), (1, 0)):  # the second time with what the first has left in the caches
            prompts = [asked(PROMPTS[0 if is_shared else i], features[i], i) for i in order]
            for i, prompt, got in zip(order, prompts, answers(engine, prompts), strict=True):
                kv_bits = options.get("kv_bits")
                key = (pair[i], i, is_shared, kv_bits)
                if key not in self.alone:
                    again = asked(prompt.content, features[i], i)
                    [self.alone[key]] = answers(engine_of(llm, self.model, {"kv_bits": kv_bits}), [again])
                want = self.alone[key]
                if got != want and not self.is_exact:  # logprobs differ by rounding, and nearly tied tokens
                    ends = Outcome(*got[2]), Outcome(*want[2])
                    again = asked(prompt.content, features[i], i)
                    assert got[2] == want[2] or is_near_tie(llm, self.model, again, *ends), (pair, i)
                elif got != want:
                    pytest.fail(f"{pair[i]} beside {pair[1 - i]} gets {got}, and alone {want}")
        pool = engine.core.scheduler.pool
        assert pool.num_free == pool.num_blocks


def engine_of(llm, model, options):
    options = {"num_blocks": 32, "block_size": SIZE, "enable_prefix_caching": True} | options
    if options.get("proposer"):
        options["proposer"] = llm.DraftModelProposer(model, 3)
    return llm.Engine(
        model,
        ByteTokenizer(),
        SchedulerConfig(max_num_batched_tokens=9, max_num_seqs=4),
        EngineOptions(**options),
    )


def asked(prompt, feature, number):
    sampling = replace(DRAWN, **{"seed": 5} | feature.sampling)
    return Prompt(
        prompt,
        replace(sampling, seed=(sampling.seed + number) % 2**64),
        processors=tuple(p() for p in feature.processors),
    )


def answers(engine, prompts):
    """All of each answer but its times."""
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt.content, prompt.sampling, processors=prompt.processors)
    found = {str(number): ([], [], []) for number in range(len(prompts))}
    while engine.has_requests:
        for output in engine.step():
            logprobs, scored, ends = found[output.request_id]
            logprobs += output.logprobs
            scored += output.prompt_logprobs
            if (done := output.completion) is not None:
                ends += [done.token_ids, done.text, done.finish_reason]
    return list(found.values())


@contextmanager
def served_on(operators, llm):
    """On C++ kernels an answer is the same bit for bit in any company."""
    with on_cpu(operators):
        if operators == "cpp" and not native.can_run():
            pytest.skip("no C++ compiler")
        yield Served(toy_model(llm), operators == "cpp")


UNDRAFTED = [name for name in FEATURES if name != "drafts"]

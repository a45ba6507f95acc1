"""All that decides a measurement: requests, schedule, model and engine."""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.activation_bits import AUTO, ActivationBits
from tiny_llm_lab.serving.options.sampling_options import draws_from_args
from tiny_llm_lab.types import Prompt, SamplingParams

UNCHUNKED: Final = 999_999  # tokens: more than any prompt has


@dataclass(frozen=True)
class Schedule:
    """How prompts are cut: by the batch loop's prefill_step, or, where that is 0, by the engine."""

    prefill_step: int = 0
    budget: int = 0  # max_num_batched_tokens
    threshold: int = 0  # long_prefill_token_threshold
    policy: str = "fixed"  # "table" or "adaptive": who chooses the loop's chunks instead of prefill_step
    target_ms: float = 0.0  # of the adaptive one

    @property
    def name(self) -> str:
        if self.policy != "fixed":
            return f"adaptive, {self.target_ms:g} ms" if self.policy == "adaptive" else self.policy
        if self.max_chunk >= UNCHUNKED:
            return "unchunked"
        if self.prefill_step:
            return f"prefill_step {self.prefill_step}"
        return f"budget {self.budget}" + (f", threshold {self.threshold}" if self.threshold else "")

    @property
    def max_chunk(self) -> int:
        """The most tokens of one prompt in one step."""
        return self.prefill_step or min(self.budget, self.threshold or self.budget)


@dataclass(frozen=True)
class Spec:
    """One measurement; another engine reads model, requests, seed, threads and variant only."""

    model: str
    solution: str
    device: str | None = None
    dtype: str | None = None
    schedule: Schedule = Schedule()
    batch_size: int = 1
    requests: tuple[Request, ...] = ()
    seed: int = 0
    async_scheduling: bool | None = None  # None: as the loop or the engine decides
    threads: int = 0  # 0: as many as the engine takes by itself
    activation_bits: ActivationBits = AUTO
    variant: str = ""
    sampling: SamplingParams = SamplingParams()  # of every answer, but for its length

    @classmethod
    def from_args(cls, args: Namespace, model: str, **others: Any) -> "Spec":
        """The model and solution of a command; `others` are fields of their own."""
        return cls(model, args.solution, args.device, args.dtype, **others)

    def drawn(self, args: Namespace) -> "Spec":
        """With the sampling that flags or else the model ask for; raises UserError for an unknown model."""
        return replace(self, sampling=draws_from_args(args, find_folder(self.model)))

    @property
    def title(self) -> str:
        """Solution and variant."""
        return f"{self.solution} {self.variant}".strip()

    @property
    def longest(self) -> int:
        return max(request.num_tokens for request in self.requests)


def at_once(batch: int, prompt_len: int, output_len: int) -> tuple[Request, ...]:
    """Equal requests that all arrive at the start."""
    return (Request("early", prompt_len, output_len),) * batch


def prompts_of(
    requests: Iterable[Request], vocab_size: int, seed: int = 0, sampling: SamplingParams = SamplingParams()
) -> list[Prompt]:
    """Random tokens and answers of exactly the wanted lengths; no two prompts begin alike."""
    draw = np.random.default_rng(seed)
    return [
        Prompt(
            draw.integers(0, vocab_size, each.prompt_len).tolist(),
            replace(sampling, max_tokens=each.max_tokens, ignore_eos=True, seed=number),
            each.arrival_s,
        )
        for number, each in enumerate(requests)
    ]

"""Chunk sizes on a bursty load, in virtual time: `python -m tests.helpers.chunk_burst` prints the table.

A forward pass takes A + B * tokens, and D for each stored token that 128 new ones look at: about what the
default model takes on two CPU cores (results/chunked-prefill.json). Nothing else takes time, so the table is
the same on every machine.
"""

import argparse
import random
from dataclasses import dataclass
from typing import Any

from tests.helpers.fakes import Call, FakeClock, FakeModel
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.runtime.metrics import percentile
from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.types import PrefillEvent, Prompt, SamplingParams

A_S, B_S, D_S = 1.5e-3, 0.08e-3, 0.008e-3
SIZES = (32, 64, 128, 256, 512)
POLICIES = (*map(str, SIZES), "table", "adaptive")
TARGET_S = 0.05
_STEPS = {"table": None, "adaptive": 128}


class CostModel(FakeModel):
    """Moves a clock instead of computing; says the same letter for ever."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(num_layers=1, max_position_embeddings=8192, before_call=self._take_time)
        self._clock = clock

    def __call__(self, tokens: Any, offset: Any = 0, cache: Any = None, **wanted: Any) -> Any:
        self.calls.clear()
        return super().__call__(tokens, offset, cache, **wanted)

    def _take_time(self, call: Call) -> None:
        batch = len(call.tokens)
        offsets = [call.offset] if isinstance(call.offset, int) else call.offset
        stored = sum(offsets) * call.length / 128
        self._clock.now += A_S + B_S * batch * call.length + D_S * stored

    def _row(self, *_: Any) -> Any:
        return [float(token == 97) for token in range(self.config.vocab_size)]


def burst(seed: int = 0) -> list[Prompt]:
    """Six answers of 400 tokens flow; three bursts of three prompts of 600 to 1,400 tokens, answers of 8."""
    rng = random.Random(seed)
    prompts = [_prompt(rng.randint(8, 40), 400, 0.0) for _ in range(6)]
    for number in range(3):
        start_s = 0.1 + 0.6 * number
        prompts += [_prompt(rng.randint(600, 1400), 8, start_s + 0.02 * rng.random()) for _ in range(3)]
    return prompts


def _prompt(length: int, max_tokens: int, arrival_s: float) -> Prompt:
    return Prompt([97] * length, SamplingParams(max_tokens=max_tokens, ignore_eos=True), arrival_s)


@dataclass(frozen=True)
class Outcome:
    """Milliseconds of a run: gaps of the six flowing answers, first tokens of the long prompts, all of it."""

    itl_p50: float
    itl_p99: float
    itl_max: float
    ttft: float
    total: float
    sizes: tuple[int, ...]  # of all chunks but the last one of each prompt


def outcome(llm: Any, policy: str, prompts: list[Prompt], batch_size: int = 10) -> Outcome:
    """One run; `policy` is a number of tokens, "table" or "adaptive" with a base of 128 and 50 ms."""
    clock, events = FakeClock(), []
    done = llm.batch_generate(
        CostModel(clock),
        ByteTokenizer(),
        prompts,
        max_seq_len=4096,
        batch_size=batch_size,
        prefill_step=_STEPS[policy] if policy in _STEPS else int(policy),
        chunk_policy=llm.AdaptiveChunker(TARGET_S) if policy == "adaptive" else None,
        on_event=events.append,
        async_scheduling=False,
        clock=clock,
    )
    flowing, late = done[:6], done[6:]
    gaps = [gap for each in flowing for gap in each.timing.itl_s]
    ttfts = [each.timing.ttft_s or 0.0 for each in late]
    numbers = (percentile(gaps, 50), percentile(gaps, 99), max(gaps), sum(ttfts) / len(ttfts), clock.now)
    return Outcome(*(round(1e3 * number, 1) for number in numbers), _sizes(events))


def _sizes(events: list[Any]) -> tuple[int, ...]:
    before: dict[int, int] = {}
    sizes = []
    for event in events:
        if isinstance(event, PrefillEvent):
            size = event.num_computed_tokens - before.get(event.prompt_idx, 0)
            before[event.prompt_idx] = event.num_computed_tokens
            if event.num_computed_tokens < event.num_prompt_tokens:
                sizes.append(size)
    return tuple(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--solution", default="ref")
    args = parser.parse_args()
    llm: Any = load_solution(args.solution)
    print("policy    ITL p50  ITL p99  ITL max  TTFT long  total ms  chunk sizes")
    for policy in POLICIES:
        found = outcome(llm, policy, burst(args.seed), args.batch_size)
        sizes = ", ".join(f"{found.sizes.count(size)} x {size}" for size in sorted(set(found.sizes)))
        print(
            f"{policy:<8} {found.itl_p50:8.1f} {found.itl_p99:8.1f} {found.itl_max:8.1f} "
            f"{found.ttft:10.1f} {found.total:9.1f}  {sizes}"
        )


if __name__ == "__main__":
    main()

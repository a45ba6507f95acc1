"""Two prompts that arrive together, on the default model: a formula says when each gets its first token."""

import random

import pytest
from tests.helpers.tracing import steps_to_first_token, totals

from tiny_llm_lab.measure.trace import schedule_trace

pytestmark = pytest.mark.usefixtures("kernels_on")


def second_prompt_steps(first: int, second: int, threshold: int, budget: int) -> tuple[int, int]:
    """Steps to the first tokens of two prompts that come together; the first goes on decoding."""
    chunk = min(threshold or budget, budget)
    first_steps = -(-first // chunk)
    last = first - (first_steps - 1) * chunk
    beside = min(chunk, budget - chunk)
    if beside > 0 and beside * (first_steps - 1) >= second:
        return first_steps, -(-second // beside)
    got = (first_steps - 1) * beside + min(chunk, budget - last)
    if got >= second:
        return first_steps, first_steps
    return first_steps, first_steps - (got - second) // min(chunk, budget - 1)


@pytest.mark.parametrize("case", range(40))
def test_two_prompts_share_the_budget_as_the_formula_says(case: int) -> None:
    draw = random.Random(case)
    first, second, budget = draw.randint(1, 200), draw.randint(1, 200), draw.randint(3, 64)
    threshold = draw.choice([0, draw.randint(1, 12), draw.randint(1, 80)])
    wanted = second_prompt_steps(first, second, threshold, budget)
    decoding = max(1, wanted[1] - wanted[0] + 1)  # until the second has its token
    steps = schedule_trace(
        [(0, "first", first, decoding), (0, "second", second, 1)],
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
    )
    found = (
        steps_to_first_token(steps, "first", 0, first),
        steps_to_first_token(steps, "second", 0, second),
    )
    assert found == wanted, f"prompts of {first} and {second}, threshold {threshold}, budget {budget}"
    assert sum(totals(steps)) == first + decoding - 1 + second
    assert max(totals(steps)) <= budget


def test_the_formula_gives_what_is_known_of_a_prompt_alone_and_beside_a_decode() -> None:
    assert second_prompt_steps(512, 4096, 0, 512) == (1, 10), "9 after the first prompt's own step"
    assert second_prompt_steps(1, 4096, 512, 512) == (1, 9)
    assert second_prompt_steps(200, 120, 0, 48) == (5, 7)

"""Counts of a traced run: one {name: tokens} a step."""

from collections.abc import Sequence


def totals(steps: Sequence[dict[str, int]]) -> list[int]:
    return [sum(step.values()) for step in steps]


def steps_to_first_token(steps: Sequence[dict[str, int]], name: str, arrival: int, prompt_len: int) -> int:
    computed = 0
    for number, step in enumerate(steps[arrival:], 1):
        computed += step.get(name, 0)
        if computed >= prompt_len:
            return number
    raise AssertionError(f"{name} never got a token")

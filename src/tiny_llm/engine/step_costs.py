"""An instrument: how many tokens each step of a schedule computes, without a model."""

from collections.abc import Sequence

from tiny_llm_lab.types import SchedulerConfig


def probe(config: SchedulerConfig, arrivals: Sequence[tuple[int, str, int, int]]) -> list[dict[str, int]]:
    """Returns the tokens that a `Scheduler` computes in each step, by request id, until all have ended.

    `arrivals` are (step, request id, prompt_len, max_tokens), sorted by step: you add a request before you
    plan that step, counted from 0. It ends with its max_tokens-th token, and all its tokens fit in
    max_model_len. A step without work is an empty dict. The pool has blocks for all requests, and a sampled
    token is any number, because nothing reads it. Raises UserError like `Scheduler.add`.
    """
    raise NotImplementedError("task 3.4.6")


def decode_step_costs(threshold: int, long_prompt_len: int = 256, max_tokens: int = 16) -> list[int]:
    """Returns all tokens of each step that brings a reader a token, the first token excepted.

    The reader's request has a prompt of one token and an answer of `max_tokens`. A request with a prompt of
    `long_prompt_len` tokens and an answer of two arrives in step 1, and gets at most `threshold` tokens of it
    in a step (0 = no limit). The budget of a step is large enough for both.
    """
    raise NotImplementedError("task 3.4.6")

"""A step that can be launched before the tokens of the one in front of it are read."""

from .request_queue import RequestQueue
from .step import InflightStep


def may_launch_early(step: InflightStep, queue: RequestQueue) -> bool:
    """Whether all of the next step is certain but its input tokens, while `step` is not read yet.

    Each request of `step` then takes one token, the one that `step` samples. It is certain if none waits to
    be admitted, the running sequences are those of `step` and have all known tokens computed there, without a
    draft, no answer ends with the token under way, whatever that is, and no request has processors (from
    task 3.7.3 on), which need it.
    """
    counts = step.plan.num_scheduled_tokens
    sequences = {each.sequence for each in step.requests}
    is_same = not queue.waiting and sequences == set(queue.running)
    return is_same and all(
        not each.processors
        and each.answer.max_draft_tokens > 0
        and each.sequence.num_computed_tokens + counts[each.sequence.request_id] == each.sequence.num_tokens
        for each in step.requests
    )

"""When a step can be launched before the tokens of the previous step are read."""

from .request_queue import RequestQueue
from .step import InflightStep


def may_launch_early(step: InflightStep, queue: RequestQueue) -> bool:
    """Whether everything about the next step is certain except its input tokens, before `step` is read.

    In the next step each request of `step` then takes one token, which `step` samples. The next step is
    certain if no sequence waits to be admitted; the running sequences are those in `step`, which computes all
    their known tokens, without a draft; and no answer ends with the pending token, whatever that is.
    """
    counts = step.plan.num_scheduled_tokens
    sequences = {each.sequence for each in step.requests}
    is_same = not queue.waiting and sequences == set(queue.running)
    return is_same and all(
        each.answer.max_draft_tokens > 0
        and each.sequence.num_computed_tokens + counts[each.sequence.request_id] == each.sequence.num_tokens
        for each in step.requests
    )

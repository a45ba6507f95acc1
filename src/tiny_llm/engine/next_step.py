"""When a step can be launched before the tokens of the previous step are read."""

from .request_queue import RequestQueue
from .step import InflightStep


def may_launch_early(step: InflightStep, queue: RequestQueue) -> bool:
    """Whether everything about the next step is certain except its input tokens, before `step` is read.

    In the next step each request of `step` then takes one token, which `step` samples. The next step is
    certain if no sequence waits to be admitted; the running sequences are those in `step`, which computes all
    their known tokens, without a draft; and no answer ends with the pending token, whatever that is.
    """
    raise NotImplementedError("task 3.7.2")

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
    raise NotImplementedError("task 3.7.2")

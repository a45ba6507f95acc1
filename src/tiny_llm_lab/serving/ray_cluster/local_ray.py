"""Joining a Ray cluster, or starting one on this machine."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tiny_llm_lab.runtime.native.settings import usable_cores
from tiny_llm_lab.types import UserError


def share_cores(threads: int | None, num_replicas: int) -> int:
    """The threads of an engine: the number asked for, or its share of this machine's cores."""
    return threads or max(1, usable_cores() // num_replicas)


@contextmanager
def connect(address: str | None, shows_workers: bool = True) -> Iterator[None]:
    """A connection to the cluster at `address`, or, with None, a cluster of this machine while in use.

    `shows_workers`: what engines of a local cluster say appears on this process's stderr.

    Raises UserError without Ray, and when there is no cluster at `address`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # don't send reports to another host
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError(
            "Ray is not installed: "
            "python3 -m pip --python .venv/bin/python install 'ray[serve,data]>=2.60,<3'"
        ) from None
    try:
        ray.init(
            address=address or "local",
            namespace="tiny-llm",
            include_dashboard=False if not address else None,
            logging_level=logging.WARNING,
            log_to_driver=shows_workers and address is None,
        )
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"cannot reach a Ray cluster at {address!r} ({error}): start one with ray start"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()

"""Joining a Ray cluster, or starting one on this machine."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tiny_llm_lab.types import UserError


@contextmanager
def connect(address: str | None) -> Iterator[None]:
    """A connection to the cluster at `address`, or, with None, a cluster of this machine while in use.

    Raises UserError without Ray, and when there is no cluster at `address`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no report to another host
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError(
            "Ray is not installed: ./pdmw install --group ray, or pip install 'tiny-llm[ray]'"
        ) from None
    try:
        ray.init(
            address=address or "local",
            namespace="tiny-llm",
            include_dashboard=False if not address else None,
            logging_level=logging.WARNING,
            log_to_driver=address is None,
        )
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"there is no Ray cluster at {address!r} ({error}): start one with ray start"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()

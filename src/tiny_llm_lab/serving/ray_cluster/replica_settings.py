"""How many replicas there are, what each of them needs, and when Ray starts more."""

from dataclasses import dataclass
from typing import Any

from tiny_llm_lab.runtime.console.field_flags import at_least_one, flag
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class ReplicaSettings:
    """The flags of a cluster, and the limits that follow from its engines."""

    num_replicas: int = flag(1, "number of engines", at_least_one)
    min_replicas: int | None = flag(None, "fewest engines, with autoscaling", at_least_one)
    max_replicas: int | None = flag(None, "most engines, with autoscaling", at_least_one)
    target_ongoing_requests: float | None = flag(
        None, "requests per engine above which another engine starts (default: half of --max-num-seqs)"
    )
    upscale_delay_s: float = flag(10.0, "seconds above the target before an engine is added", metavar="S")
    downscale_delay_s: float = flag(120.0, "seconds below the target before one is removed", metavar="S")
    num_cpus: float = flag(1.0, "CPUs that an engine reserves on its node (default: --threads)")
    num_gpus: float = flag(0.0, "GPUs that an engine reserves on its node")
    max_queued_requests: int = flag(
        1000, "most requests waiting for an engine; more get status 429", at_least_one
    )
    num_ingress: int = flag(1, "number of processes that route requests to engines", at_least_one)
    by_prefix: bool = flag(True, "send prompts that begin alike to one engine, unless it is overloaded")
    max_num_seqs: int = 64  # requests that a replica's engine runs at a time
    max_body_size: int = 4 * 2**20
    drain_s: float = 30.0  # time for a replica's last requests when it is replaced

    def __post_init__(self) -> None:
        if (self.min_replicas is None) != (self.max_replicas is None):
            raise UserError("--min-replicas and --max-replicas need each other: give both")
        if not 1 <= (self.min_replicas or 1) <= (self.max_replicas or 1):
            raise UserError("--min-replicas must be 1 to --max-replicas")

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.num_replicas

    @property
    def max_ongoing(self) -> int:
        """Requests of one replica, twice as many as run, so that its engine never waits for Ray."""
        return 2 * self.max_num_seqs

    @property
    def max_running(self) -> int:
        return self.max_ongoing * self.most_replicas

    def deployment_options(self) -> dict[str, Any]:
        """The options of Ray's deployment."""
        options = {
            "name": "Replica",
            "max_ongoing_requests": self.max_ongoing,
            "max_queued_requests": self.max_queued_requests,
            "ray_actor_options": {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus},
            "health_check_period_s": 2.0,
            "health_check_timeout_s": 30.0,
            "graceful_shutdown_timeout_s": self.drain_s,
            "graceful_shutdown_wait_loop_s": 0.5,
        }
        if self.max_replicas is None:
            return options | {"num_replicas": self.num_replicas}
        scaling = {
            "min_replicas": self.min_replicas,
            "max_replicas": self.max_replicas,
            "target_ongoing_requests": self.target_ongoing_requests or max(1, self.max_num_seqs / 2),
            "upscale_delay_s": self.upscale_delay_s,
            "downscale_delay_s": self.downscale_delay_s,
        }
        return options | {"autoscaling_config": scaling}

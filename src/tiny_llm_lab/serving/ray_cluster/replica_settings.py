"""How many replicas there are, what each needs, and when there are more of them."""

from dataclasses import dataclass
from typing import Any

from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class ReplicaSettings:
    """The flags of a cluster, and the limits that follow from its engines."""

    num_replicas: int = 1
    min_replicas: int | None = None  # with max_replicas: as many as the queue asks for
    max_replicas: int | None = None
    target_ongoing_requests: float | None = None  # of a replica; None is half of what its engine runs
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 120.0
    num_cpus: float = 1.0  # of a replica; Ray places it where so many are free
    num_gpus: float = 0.0
    max_num_seqs: int = 64  # that a replica's engine runs at a time
    max_queued_requests: int = 1000  # that wait for a replica, at each ingress; more are refused with 429
    num_ingress: int = 1
    by_prefix: bool = True
    max_body_size: int = 4 * 2**20
    drain_s: float = 30.0  # that a replica has for its last requests when it is replaced

    def __post_init__(self) -> None:
        if (self.min_replicas is None) != (self.max_replicas is None):
            raise UserError("--min-replicas and --max-replicas go together: give both")
        if not 1 <= (self.min_replicas or 1) <= (self.max_replicas or 1):
            raise UserError("--min-replicas must be 1 to --max-replicas")

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.num_replicas

    @property
    def max_ongoing(self) -> int:
        """Requests of one replica: as many again as run, so that its engine never waits for Ray."""
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

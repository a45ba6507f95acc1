"""Ray's request router: see `rank_replicas`. Needs Ray; only `deployment.py` imports this module."""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from tiny_llm_lab.serving.ray_cluster.asgi_call import HttpRequest
from tiny_llm_lab.serving.ray_cluster.replica_choice import Overload, rank_replicas


class PrefixRouter(RequestRouter):
    """Sends prompts that begin alike to the same replica."""

    def initialize_state(self, by_prefix: bool = True, factor: float = 1.5, slack: int = 4) -> None:
        self._by_prefix, self._overload = by_prefix, Overload(factor, slack)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Every candidate on a rank of its own, so that Ray takes the next one only when one is full."""
        request = pending_request.args[0] if pending_request and pending_request.args else None
        key = request.prefix_key if self._by_prefix and isinstance(request, HttpRequest) else None
        found = {str(each.replica_id): each for each in candidate_replicas}
        lens = {name: self.replica_queue_len_cache.get(each.replica_id) or 0 for name, each in found.items()}
        return [[found[name]] for name in rank_replicas(key, lens, self._overload)]

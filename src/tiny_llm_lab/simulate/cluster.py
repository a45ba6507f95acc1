"""Requests over replicas: who gets which, and what all of them did together."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from .ledger import Ledger
from .machine import Machine
from .replica import Replica
from .traffic import SimRequest

Route = Literal["round-robin", "least-loaded"]
ROUTES: Final[tuple[Route, ...]] = ("round-robin", "least-loaded")
_FOREVER: Final = float("inf")


def replay(
    requests: Sequence[SimRequest],
    machine: Machine,
    num_replicas: int,
    route: Route,
    itl_slo_s: float,
    make_pacer: Callable[[], Any] = lambda: None,
) -> Ledger:
    """Send `requests`, in order of their arrival, to replicas of `machine`, and let all of them end.

    round-robin takes the replicas in turn; least-loaded the one with the fewest requests that have not ended
    at the arrival, the first of equals. `make_pacer` makes each replica its own BudgetController, or None.
    """
    replicas = [Replica(machine, itl_slo_s, make_pacer()) for _ in range(num_replicas)]
    for request in requests:
        if route == "round-robin":
            chosen = replicas[request.number % num_replicas]
            chosen.run_until(request.arrival_s)
        else:
            for replica in replicas:
                replica.run_until(request.arrival_s)
            chosen = min(replicas, key=lambda replica: replica.load(request.arrival_s))
        chosen.submit(request)
    total = Ledger(itl_slo_s)
    for replica in replicas:
        replica.run_until(_FOREVER)
        total.add(replica.ledger)
    return total

"""Whose turn it is, and how a step's tokens are divided: what policies differ in."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from tiny_llm_lab.types import Policy, SchedulerConfig, UserError

from .sequence import ScheduledRequest, clamp_new_tokens

# Steps that a request waits at most, with policy "priority", before it is the most urgent of its class.
MAX_WAITING_STEPS = 256


def order_key(
    policy: Policy, request: ScheduledRequest, num_added: int, is_aged: bool = False
) -> tuple[float, ...]:
    """What requests are sorted by, smallest first; `num_added` requests were added before this one.

    Batch-class requests come behind all others, whatever the policy. Then "priority": by priority, then
    arrival_s, then num_added; the other policies by num_added alone. A request that `is_aged` comes
    before all of its class that are not, and among those that are by num_added.
    """
    if policy != "priority" or is_aged:
        return (request.is_batch_class, 0 if is_aged else 1, 0, 0.0, num_added)
    return (request.is_batch_class, 1, request.priority, request.arrival_s, num_added)


def turns(
    running: Sequence[ScheduledRequest], waiting: Sequence[ScheduledRequest], max_num_seqs: int
) -> list[tuple[Sequence[ScheduledRequest], Sequence[ScheduledRequest]]]:
    """Whose turn it is in a step, from two lines in order: first the interactive requests, then batch class.

    Of each class those who run, and those who wait and find one of `max_num_seqs` places. Interactive
    ones find the places of batch-class ones that run, too; those that wait find what is left then.
    """
    num_running, num_waiting = _num_interactive(running), _num_interactive(waiting)
    num_left = max(0, max_num_seqs - len(running) - num_waiting)
    return [
        (running[:num_running], waiting[: min(num_waiting, max_num_seqs - num_running)]),
        (running[num_running:], waiting[num_waiting : num_waiting + num_left]),
    ]


def _num_interactive(line: Sequence[ScheduledRequest]) -> int:
    # Asked several times a step, mostly when nobody is of batch class.
    if not line or not line[-1].is_batch_class:
        return len(line)
    return bisect_left(line, True, key=lambda request: request.is_batch_class)


class Lineup:
    """Who waits and who runs, both in the order of a policy, counted in steps."""

    def __init__(self, policy: Policy) -> None:
        """Nobody is there. Sets policy, waiting = [] and running = [], which are always in order."""
        self.policy = policy
        self.waiting: list[ScheduledRequest] = []
        self.running: list[ScheduledRequest] = []
        # By `order`: an id may be used again as soon as its request has ended.
        self._waiting_since: dict[tuple[float, ...], int] = {}
        # The same, oldest first; those who no longer wait are dropped when they come up.
        self._queued: deque[tuple[int, ScheduledRequest]] = deque()
        self._num_added = self._num_steps = 0

    def add(self, request: ScheduledRequest) -> None:
        """A new request waits; its `order` says where."""
        request.order = order_key(self.policy, request, self._num_added)
        self._num_added += 1
        self._wait(request)

    def is_waiting(self, request: ScheduledRequest) -> bool:
        """Whether it waits; else it runs."""
        return request.order in self._waiting_since

    def admit(self) -> ScheduledRequest:
        """The first of those who wait runs from now on."""
        request = self.waiting.pop(0)
        del self._waiting_since[request.order]
        insort(self.running, request, key=_place)
        return request

    def preempt(self) -> ScheduledRequest:
        """The last of those who run waits from now on, in its old place in the order."""
        request = self.running.pop()
        self._wait(request)
        return request

    def remove(self, request: ScheduledRequest) -> None:
        """It neither waits nor runs any more."""
        line = self.waiting if self.is_waiting(request) else self.running
        del line[bisect_left(line, request.order, key=_place)]
        self._waiting_since.pop(request.order, None)

    def next_step(self) -> None:
        """Count a step. With policy "priority", who waited MAX_WAITING_STEPS steps is the most urgent of
        its class now."""
        self._num_steps += 1
        while self._queued and self._queued[0][0] + MAX_WAITING_STEPS < self._num_steps:
            since, request = self._queued.popleft()
            if self._waiting_since.get(request.order) == since and request.order[1]:
                self.remove(request)
                request.order = order_key(self.policy, request, int(request.order[-1]), is_aged=True)
                self._wait(request)

    def _wait(self, request: ScheduledRequest) -> None:
        insort(self.waiting, request, key=_place)
        self._waiting_since[request.order] = self._num_steps
        if self.policy == "priority" and request.order[1]:
            self._queued.append((self._num_steps, request))


def _place(request: ScheduledRequest) -> tuple[float, ...]:
    return request.order


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Divide `budget` tokens among requests that need so many: max-min fair, in the order of `needs`.

    Nobody gets more than it needs, what one leaves is divided among the others, and nothing stays while
    somebody needs more. Requests that need more than they get are at most one token apart, the
    earlier ones having it: ([4096, 10, 300], 512) -> [251, 10, 251].
    """
    shares = [0] * len(needs)
    left = max(0, budget)
    by_need = sorted(range(len(needs)), key=needs.__getitem__)
    for i, request in enumerate(by_need):
        level, num_extra = divmod(left, len(needs) - i)
        if needs[request] > level:
            # All that remain need more than an equal part.
            for place, other in enumerate(sorted(by_need[i:])):
                shares[other] = level + (place < num_extra)
            break
        shares[request] = needs[request]
        left -= needs[request]
    return shares


def align_to_grid(start: int, num_new_tokens: int, num_missing_tokens: int, grid: int) -> int:
    """Shorten a chunk so that it ends at a multiple of `grid` tokens of its request (0 = no grid).

    The chunk has `num_new_tokens` from token `start` on, of `num_missing_tokens`; one that reaches the
    last of these stays as it is. 0 when no such place lies within the chunk.
    """
    if grid == 0 or num_new_tokens >= num_missing_tokens:
        return num_new_tokens
    return max(0, (start + num_new_tokens) // grid * grid - start)


def reject_narrow_grid(config: SchedulerConfig) -> None:
    """Raise UserError when a prompt could wait forever for room up to the next multiple of chunk_grid.

    The threshold, if it is on, and what max_num_seqs - 1 decodes leave of the budget must reach from
    one multiple to the next.
    """
    grid, threshold = config.chunk_grid, config.long_prefill_token_threshold
    room = config.max_num_batched_tokens - config.max_num_seqs + 1
    if 0 < threshold < grid:
        raise UserError(
            f"no chunk of at most {threshold} tokens reaches from one multiple of {grid} to the next: set "
            f"chunk_grid to at most long_prefill_token_threshold ({threshold})"
        )
    if grid > room:
        raise UserError(
            f"{config.max_num_seqs - 1} decodes leave {room} of {config.max_num_batched_tokens} tokens, "
            f"fewer than chunk_grid ({grid}): lower max_num_seqs or chunk_grid"
        )


def _reach_grid(shares: list[int], cut: list[tuple[int, int]], prefills: list[int]) -> None:
    """Let shares of those who are cut, with their ways to the grid, become enough or nothing."""
    left = sum(shares[i] for i, _ in cut)
    whole = set(prefills) - {i for i, _ in cut}
    for i in sorted(whole, reverse=True):
        if cut and left < cut[0][1]:
            taken = min(shares[i], cut[0][1] - left)
            shares[i] -= taken
            left += taken
    for i, way in cut:
        shares[i] = min(left, max(shares[i], way))
        left -= shares[i]


class StepBudget:
    """The tokens of one step: what is left of them, who got how many, and who was preempted."""

    def __init__(self, config: SchedulerConfig, num_tokens: int) -> None:
        """`num_tokens` are left. Sets left, granted = {} by request id in order, preempted = []."""
        self.config = config
        self.left = num_tokens
        self.granted: dict[str, int] = {}
        self.preempted: list[ScheduledRequest] = []
        self._shares: dict[str, int] = {}

    def divide(self, needs: Sequence[tuple[ScheduledRequest, int, int]]) -> None:
        """Policy "fair": fair shares of what is left bound what `chunk` gives from now on.

        `needs` has all requests that may get tokens, in order, each as in `chunk`. A prefill needs no more
        than the threshold. With a chunk_grid, a prefill that is cut gets enough to reach the grid's next
        multiple, from later ones that are cut as well, and the first one if need be from any prefill.
        Decodes keep their shares.
        """
        threshold, grid = self.config.long_prefill_token_threshold, self.config.chunk_grid
        wanted = [num if r.is_decoding else clamp_new_tokens(num, threshold, num) for r, _, num in needs]
        shares = fair_shares(wanted, self.left)
        if grid:
            prefills = [i for i, (r, _, _) in enumerate(needs) if not r.is_decoding]
            cut = [i for i in prefills if shares[i] < wanted[i]]
            _reach_grid(shares, [(i, grid - needs[i][1] % grid) for i in cut], prefills)
        self._shares = {r.request_id: share for (r, _, _), share in zip(needs, shares, strict=True)}

    def chunk(self, request: ScheduledRequest, num_computed: int, num_missing: int) -> int:
        """How many of its `num_missing` tokens a request may have, the first `num_computed` being computed.

        A decode gets what it needs, guess included, as far as tokens are left. A prefill gets what
        `clamp_new_tokens` and the grid leave; without chunked prefill all or nothing.
        """
        left = min(self.left, self._shares.get(request.request_id, self.left))
        if request.is_decoding:
            return min(num_missing, left)
        if not self.config.enable_chunked_prefill:
            return num_missing if num_missing <= self.left else 0
        num_new = clamp_new_tokens(num_missing, self.config.long_prefill_token_threshold, left)
        return align_to_grid(num_computed, num_new, num_missing, self.config.chunk_grid)

    def grant(self, request: ScheduledRequest, num_new_tokens: int) -> None:
        """Give a request its tokens of this step, 1 or more."""
        self.granted[request.request_id] = num_new_tokens
        self.left -= num_new_tokens

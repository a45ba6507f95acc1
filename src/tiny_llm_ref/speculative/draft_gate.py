"""How long a draft is worth its time: from measured seconds, and from what was accepted before."""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

# How far the newest pass moves the averages of a line, once there are more than its inverse.
_NEWEST = 1 / 128
# A pass counts as at most this many times the expected time, because a longer time has another cause. If one
# takes less than the inverse, what was measured before had another cause, and is forgotten.
_SLOWEST = 2.0
# The first passes differ by chance. This variance of sizes, divided by their number squared, hides it.
_VARIANCE = 8.0
# What a new draft leaves of the older ones, and how many drafts the prior is worth: of one request, of all.
_OF_REQUEST, _OF_ALL = (0.9, 2.0), (0.97, 4.0)
# A line is not exact, so a draft must save more than this part of a token.
_LEAST_GAIN = 0.05
# A request may lose this part of what its tokens cost, and one token's time at once.
_MOST_LOSS = 1 / 64
# The most steps between two probes.
_RAREST_PROBE = 24


class DraftGate:
    """Chooses the length of every draft, from measured times and acceptance.

    A step of decodes with r rows takes a + b r seconds, and a pass of the draft model over r rows c + d r.
    In a step of n requests without drafts a token costs (a + b n) / n seconds. A draft token adds b + d, and
    c / m if m requests draft as many tokens. The best length gives the request the most tokens per second. It
    is 0 if the draft saves less than a twentieth of a token.

    An account bounds what a request can lose: the time of one token, and a 64th of what its tokens have cost.
    What its drafts save is added. A request has no draft that the account couldn't pay if all were rejected.
    So text that is guessed badly costs at most 2 % more than without drafts, for 500 tokens or more, as far
    as the times were known.

    Where drafts don't pay, a request drafts one token as a probe in every s-th step, the same step for all. s
    tokens cost 64 times a probe, but s is at most 24. So there is a probe within 30 tokens if the account can
    pay: where a probe costs more than 24 / 64 of a token, it is empty at times, and probes are rarer. A new
    request has one at once, and so has one whose last was accepted, if one of all requests can pay.
    """

    def __init__(self) -> None:
        """Nothing is known yet. Until a step was measured, drafts have one token."""
        self._step, self._pass = _Line(), _Line()
        self._typical = _Acceptance(*_OF_ALL)
        self._requests: dict[str, _Acceptance] = {}
        self._num_steps = 0
        self._token_s = 0.0  # of a token without drafts
        self._paid_s = 0.0  # for each token of the last drafts
        self._prices = [0.0]  # what each token of a draft adds to the step that began, in seconds
        self._probe_s = 0.0

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step in which `num_requests` decode."""
        self._num_steps += 1
        num, (fixed_s, row_s), (pass_s, drafted_s) = max(1, num_requests), self._step.fit(), self._pass.fit()
        self._token_s = fixed_s / num + row_s
        self._probe_s = row_s + drafted_s + pass_s / num
        self._prices = [
            row_s + drafted_s + pass_s / self._num_sharing(position, num, row_s + drafted_s, pass_s)
            for position in range(max(1, len(self._typical.rates)))
        ]

    def length(self, request_id: str, most: int) -> int:
        """Returns how many tokens a draft of this request should have in the step that began, 0 to `most`.

        The first draft of a request has one token, and after s measured steps none has more than s. Changes
        nothing.
        """
        if not self._token_s:
            return min(1, most)
        request = self._requests.get(request_id) or _Acceptance(*_OF_REQUEST)
        is_new, budget_s = not request.rates, request.saved_s + self._token_s
        best, best_rate, reached, tokens, cost_s = 0, 1 / self._token_s, 1.0, 1.0, 0.0
        rates = request.rates or self._typical.rates or [0.5]
        for i in range(min(most, 1 if is_new else self._step.num)):
            reached *= rates[min(i, len(rates) - 1)]
            tokens += reached
            cost_s += self._prices[min(i, len(self._prices) - 1)]
            if cost_s > budget_s:
                break
            rate = tokens / (self._token_s + cost_s)
            if rate > best_rate and (tokens - 1 - _LEAST_GAIN) * self._token_s >= cost_s:
                best, best_rate = i + 1, rate
        every = min(_RAREST_PROBE, max(1, math.ceil(self._probe_s / (_MOST_LOSS * self._token_s))))
        is_due = self._num_steps % every == 0 and self._probe_s <= budget_s
        # Nothing was looked up yet, perhaps: then a row counts as a token until there are two sizes of steps.
        pays = self._probe_s < self._token_s or (is_new and self._probe_s == self._token_s)
        is_next = (is_new or request.is_right) and pays and self._prices[0] <= budget_s
        return best or min(most, int(is_due or is_next))

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Learn from a decode of a request how many tokens of its draft were accepted. 0, 0: it had none."""
        request = self._requests.setdefault(request_id, _Acceptance(*_OF_REQUEST))
        earned_s = _MOST_LOSS * (1 + num_accepted_tokens) * self._token_s
        request.saved_s += earned_s + num_accepted_tokens * self._token_s - num_draft_tokens * self._paid_s
        request.is_right = 0 < num_draft_tokens == num_accepted_tokens
        if num_draft_tokens:
            self._typical.observe(num_draft_tokens, num_accepted_tokens)
            request.observe(num_draft_tokens, num_accepted_tokens, self._typical.rates)

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step with only decodes and their drafts took, without the making of drafts.

        It had `num_rows` rows. A step of more than twice the expected time counts as twice. After one of less
        than half, what was measured before is forgotten.
        """
        self._step.observe(num_rows, seconds)

    def observe_drafting(self, num_passes: int, num_rows: int, seconds: float) -> None:
        """Learn how long the drafts of a step took: `num_passes` passes, `num_rows` rows in total.

        A draft of k tokens has a row in each of k passes, and one that is looked up has one row in one pass.
        Times count as in `observe_step`.
        """
        self._pass.observe(num_rows / num_passes, seconds / num_passes)
        pass_s, drafted_s = self._pass.fit()
        self._paid_s = self._step.fit()[1] + drafted_s + pass_s * num_passes / num_rows

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._requests.pop(request_id, None)

    def _num_sharing(self, position: int, num: int, alone_s: float, shared_s: float) -> int:
        """Returns how many requests gain by token `position` of a draft, if as many share the pass; or 1."""
        # The most that agree, not those of the last step: once few draft, none could begin to share again.
        if not shared_s or num == 1:
            return 1
        # Nor with those that can't pay: a request would then pay for the pass alone, and soon not be able to.
        least_s = alone_s + shared_s / num - self._token_s
        able = [each for each in self._requests.values() if each.saved_s >= least_s]
        reached = [each.reached[position] for each in able if position < len(each.reached)]
        gains = (self._token_s * each for each in sorted(reached, reverse=True)[:num])
        return max((m for m, gain_s in enumerate(gains, 1) if gain_s > alone_s + shared_s / m), default=1)


class _Line:
    """Seconds of a pass over x rows: fixed + each * x, by least squares."""

    def __init__(self) -> None:
        self.num = 0  # of passes
        self._moments: tuple[float, ...] = (0.0,) * 4  # averages of x, t, x * x and x * t over passes

    def observe(self, size: float, seconds: float) -> None:
        fixed_s, each_s = self.fit()
        expected_s = fixed_s + each_s * size
        if self.num and _SLOWEST * seconds >= expected_s:
            self.num, seconds = self.num + 1, min(seconds, _SLOWEST * expected_s)
        else:
            self.num = 1
        part = max(1 / self.num, _NEWEST)
        new = (size, seconds, size * size, size * seconds)
        self._moments = tuple(was + part * (now - was) for was, now in zip(self._moments, new, strict=True))

    def fit(self) -> tuple[float, float]:
        """Returns fixed and each, neither below 0; fixed is 0 while all passes had one size."""
        size, seconds, squares, products = self._moments
        if (variance := squares - size * size) <= 1e-9 * squares:
            return 0.0, seconds / max(size, 1.0)
        slope_s = (products - size * seconds) / (variance + _VARIANCE / self.num**2)
        each_s = min(max(0.0, slope_s), seconds / size)
        return seconds - each_s * size, each_s


class _Acceptance:
    """How often each token of a draft is accepted: if all before it are (rates), and at all (reached)."""

    def __init__(self, kept: float, weight: float) -> None:
        self._kept, self._weight = kept, weight
        self._counts: list[tuple[float, float]] = []  # accepted and verified, at each position
        self.rates: list[float] = []
        self.reached: list[float] = []
        self.saved_s = 0.0  # by a request's drafts, and what it may lose by its tokens so far
        self.is_right = False  # whether all of its last draft was accepted

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int, typical: Sequence[float] = ()) -> None:
        """Learn from a draft. The prior of a position is the rate before it, and the `typical` rate there."""
        self._counts += [(0.0, 0.0)] * (max(num_draft_tokens, len(typical)) - len(self._counts))
        rate, self.rates = typical[0] if typical else 0.5, []
        for i, (accepted, verified) in enumerate(self._counts):
            prior = (rate + typical[i]) / 2 if typical else rate
            is_verified = i < num_draft_tokens and i <= num_accepted_tokens
            accepted = self._kept * accepted + (i < num_accepted_tokens)
            verified = self._kept * verified + is_verified
            self._counts[i] = accepted, verified
            rate = (accepted + self._weight * prior) / (verified + self._weight)
            self.rates.append(rate)
        self.reached = list(accumulate(self.rates, mul))

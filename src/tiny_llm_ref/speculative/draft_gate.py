"""How long a draft is worth its time: from measured seconds, and from what was accepted before."""

import math

from tiny_llm_lab.types import AllDrafts

from .measures import Acceptance, Line

# What a new draft leaves of the older ones, and how many drafts the prior is worth: of one request, of all.
_OF_REQUEST, _OF_ALL = (0.9, 2.0), (0.97, 4.0)
# A line is not exact, so a draft must save more than this part of a token.
_LEAST_GAIN = 0.05
# A request may lose this part of what its tokens cost, and one token's time at once.
_MOST_LOSS = 1 / 64
# The most steps between two probes.
_RAREST_PROBE = 24


class DraftGate(AllDrafts):
    """Chooses the length of every draft, from measured times and acceptance.

    A step of decodes with r rows takes a + b r seconds, and a pass of the draft model over r rows c + d r.
    In a step of n requests without drafts a token costs (a + b n) / n seconds. A draft token adds b + d, and
    c / m if m requests draft as many tokens. The best length gives the request the most tokens per second. It
    is 0 if the draft saves less than a twentieth of a token.

    An account bounds what a request can lose: the time of one token, and a 64th of what its tokens have cost.
    What its drafts save is added. A request has no draft that the account couldn't pay if all were rejected.
    So text that is guessed badly costs at most 2 % more than without drafts, for 500 tokens or more, as far
    as the times were known.

    Where drafts don't pay, a request drafts one token as a probe in every s-th step, the same step for all,
    or in the next one in which there is a draft to make. s tokens cost 64 times a probe, but s is at most 24.
    So there is a probe within 30 tokens if the account can pay: where a probe costs more than 24 / 64 of a
    token, it is empty at times, and probes are rarer. A new request has one at once, and so has one whose
    last was accepted, if one of all requests can pay.
    """

    def __init__(self) -> None:
        """Nothing is known yet. Until a step was measured, drafts have one token."""
        self._step, self._pass = Line(), Line()
        self._typical = Acceptance(*_OF_ALL)
        self._requests: dict[str, Acceptance] = {}
        self._token_s = 0.0  # of a token without drafts
        self._paid_s = 0.0  # for each token of the last drafts
        self._prices = [0.0]  # what each token of a draft adds to the step that began, in seconds
        self._probe_s, self._is_due = 0.0, False  # what a probe costs, and whether one is due
        self._num_steps = 0  # since a probe

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step in which `num_requests` decode."""
        num, (fixed_s, row_s), (pass_s, drafted_s) = max(1, num_requests), self._step.fit(), self._pass.fit()
        self._token_s = fixed_s / num + row_s
        self._probe_s = row_s + drafted_s + pass_s / num
        steps = self._probe_s / (_MOST_LOSS * self._token_s) if self._token_s else 1.0
        self._num_steps += 1
        self._is_due = self._num_steps >= min(_RAREST_PROBE, math.ceil(steps))
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
        request = self._requests.get(request_id) or Acceptance(*_OF_REQUEST)
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
        is_due = self._is_due and self._probe_s <= budget_s
        # Nothing was looked up yet, perhaps: then a row counts as a token until there are two sizes of steps.
        pays = self._probe_s < self._token_s or (is_new and self._probe_s == self._token_s)
        is_next = (is_new or request.is_right) and pays and self._prices[0] <= budget_s
        return best or min(most, int(is_due or is_next))

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> float:
        """Learn from a decode of a request how many tokens of its draft were accepted. 0, 0: it had none.

        Returns the seconds that the request's account has grown by, below 0 if the draft cost more.
        """
        request = self._requests.setdefault(request_id, Acceptance(*_OF_REQUEST))
        earned_s = _MOST_LOSS * (1 + num_accepted_tokens) * self._token_s
        earned_s += num_accepted_tokens * self._token_s - num_draft_tokens * self._paid_s
        request.saved_s += earned_s
        request.is_right = 0 < num_draft_tokens == num_accepted_tokens
        if num_draft_tokens:
            self._typical.observe(num_draft_tokens, num_accepted_tokens)
            request.observe(num_draft_tokens, num_accepted_tokens, self._typical.rates)
        return earned_s

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
        if self._is_due:
            self._num_steps = 0
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

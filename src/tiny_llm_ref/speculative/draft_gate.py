"""Which drafts are verified: drafts that save more time than their rows take."""

# How far the newest measurement moves an average: of one request, of all requests, of step times.
_OF_REQUEST, _OF_ALL, _OF_STEP = 1 / 4, 1 / 16, 1 / 32
# A step counts as at most this many times the expected time. A longer time has another cause.
_SLOWEST = 4.0
# Finding a draft takes time too, so it must save more than this part of a token.
_LEAST_GAIN = 0.05


class DraftGate:
    """Decides for every draft whether it pays, from measured step times and acceptance.

    A step of decodes with r rows takes a + b * r seconds. In a step of n requests without drafts a token
    costs (a + b * n) / n seconds; a draft of k tokens adds b * k seconds. The draft pays if its accepted
    tokens would have cost more time than it adds, by a twentieth of a token or more.
    """

    def __init__(self, probe_every: int = 64) -> None:
        """Nothing is known yet. One step in `probe_every` decides the opposite, to learn what has changed.

        Raises ValueError for `probe_every` below 2.
        """
        if probe_every < 2:
            raise ValueError(f"probe_every must be 2 or more, not {probe_every}")
        self.probe_every = probe_every
        self._num_steps = self._num_requests = 0
        self._typical: float | None = None  # accepted tokens of a draft, over all requests
        self._accepted: dict[str, float] = {}
        self._moments: tuple[float, ...] = ()  # averages of r, t, r * r and r * t over steps

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step in which `num_requests` decode."""
        self._num_steps += 1
        self._num_requests = num_requests

    def wants(self, request_id: str, num_draft_tokens: int) -> bool:
        """Whether to verify a draft for this request in the current step.

        As long as all steps had the same number of rows, every second step has drafts, including the first. A
        request that has had no draft is assumed to be like the others or, if there are none, to accept all.
        """
        line = self._line()
        if line is None:
            return self._num_steps % 2 == 1
        fixed_s, row_s = line
        expected = self._accepted.get(request_id, self._typical)
        token_s = (fixed_s + row_s * self._num_requests) / self._num_requests
        saved_s = (num_draft_tokens if expected is None else expected) * token_s
        pays = saved_s > row_s * num_draft_tokens + _LEAST_GAIN * token_s
        return pays != (self._num_steps % self.probe_every == 0)

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Learn how many tokens of a request's draft were accepted. An empty draft changes nothing."""
        if num_draft_tokens == 0:
            return
        typical = num_draft_tokens if self._typical is None else self._typical
        known = self._accepted.get(request_id, typical)
        self._accepted[request_id] = known + _OF_REQUEST * (num_accepted_tokens - known)
        self._typical = typical + _OF_ALL * (num_accepted_tokens - typical)

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step with only decodes and their drafts took, `num_rows` rows in total.

        A step of more than four times the expected time counts as four times.
        """
        line = self._line()
        if line is not None:
            seconds = min(seconds, _SLOWEST * (line[0] + line[1] * num_rows))
        new = (num_rows, seconds, num_rows * num_rows, num_rows * seconds)
        old = self._moments or new
        self._moments = tuple(was + _OF_STEP * (now - was) for was, now in zip(old, new, strict=True))

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._accepted.pop(request_id, None)

    def _line(self) -> tuple[float, float] | None:
        """Returns a and b by least squares, neither below 0, or None while all steps had the same size."""
        if not self._moments:
            return None
        rows, seconds, squares, products = self._moments
        variance = squares - rows * rows
        if variance <= 1e-9 * squares:
            return None
        row_s = min(max(0.0, (products - rows * seconds) / variance), seconds / rows)
        return seconds - row_s * rows, row_s

"""Which drafts are verified: drafts that save more time than their rows take."""


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
        raise NotImplementedError("task 3.9.7")

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step in which `num_requests` decode."""
        raise NotImplementedError("task 3.9.7")

    def wants(self, request_id: str, num_draft_tokens: int) -> bool:
        """Whether to verify a draft for this request in the current step.

        As long as all steps had the same number of rows, every second step has drafts, including the first. A
        request that has had no draft is assumed to be like the others or, if there are none, to accept all.
        """
        raise NotImplementedError("task 3.9.7")

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Learn how many tokens of a request's draft were accepted. An empty draft changes nothing."""
        raise NotImplementedError("task 3.9.7")

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step with only decodes and their drafts took, `num_rows` rows in total.

        A step of more than four times the expected time counts as four times.
        """
        raise NotImplementedError("task 3.9.7")

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        raise NotImplementedError("task 3.9.7")

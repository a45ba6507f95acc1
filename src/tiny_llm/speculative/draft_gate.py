"""Which drafts are verified: those that save more time than their rows take."""


class DraftGate:
    """Decides for every draft whether it pays, from measured times of steps and from acceptance.

    A step of decodes with r rows takes a + b * r seconds. In a step of n requests without drafts a token
    costs (a + b * n) / n seconds; a draft of k tokens adds b * k. It pays when the time that its accepted
    tokens would have cost is more than what it adds, by a twentieth of a token or more.
    """

    def __init__(self, probe_every: int = 64) -> None:
        """Nothing is known yet; one step in `probe_every` decides the other way, to learn what changes.

        Raises ValueError for `probe_every` below 2.
        """
        raise NotImplementedError("task 3.9.7")

    def begin_step(self, num_requests: int) -> None:
        """Begin to choose the drafts of a step, in which `num_requests` decode."""
        raise NotImplementedError("task 3.9.7")

    def wants(self, request_id: str, num_draft_tokens: int) -> bool:
        """Whether a draft for this request is to be verified in the present step.

        As long as all steps had the same number of rows, every second step has drafts, the first included. A
        request without a draft so far is taken to be like the others, and without others to accept all.
        """
        raise NotImplementedError("task 3.9.7")

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Learn how many tokens of a request's draft were accepted; an empty draft teaches nothing."""
        raise NotImplementedError("task 3.9.7")

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step took that held decodes and their drafts only, `num_rows` rows in all.

        A step of more than four times the expected time counts as one of four times.
        """
        raise NotImplementedError("task 3.9.7")

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request; one that is not known is fine."""
        raise NotImplementedError("task 3.9.7")

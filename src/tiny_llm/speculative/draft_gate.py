"""How long a draft is worth its time: from measured seconds, and from what was accepted before."""


class DraftGate:
    """Chooses the length of every draft, from measured times and acceptance.

    A step of decodes with r rows takes a + b * r seconds, and a pass of the draft model over r rows c + d * r.
    In a step of n requests without drafts a token costs (a + b * n) / n seconds. Token j of a draft adds
    b + d + c / m, if m requests draft as many tokens. A draft is worth the length at which the request gets
    the most tokens per second, if it then saves a twentieth of a token or more.

    A request's account bounds what it can lose: the time of one token, and a 64th of what its tokens have cost.
    What drafts save is added to it. A draft that its account could not pay, were all of it rejected, is not
    made. So text that is guessed badly costs at most 2 % more than without drafts, from about 200 tokens on.

    A request without drafts probes: it drafts one token in each s-th step, with all others, where s steps cost
    64 times the probe, at most 24. So it has a probe within 30 tokens, unless the account forbids it, which
    happens where a probe costs more than 24 / 64 of a token. After an accepted probe the next step has one.
    """

    def __init__(self) -> None:
        """Nothing is known yet. Until a step was measured, drafts have one token."""
        raise NotImplementedError("task 3.9.7")

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step in which `num_requests` decode."""
        raise NotImplementedError("task 3.9.7")

    def length(self, request_id: str, most: int) -> int:
        """Returns how many tokens a draft of this request should have in the step that began, 0 to `most`.

        The first draft of a request has one token. Changes nothing.
        """
        raise NotImplementedError("task 3.9.7")

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Learn from a decode of a request how many tokens of its draft were accepted. 0, 0: it had none."""
        raise NotImplementedError("task 3.9.7")

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step with only decodes and their drafts took, without the making of drafts.

        It had `num_rows` rows. A step of more than four times the expected time counts as four times.
        """
        raise NotImplementedError("task 3.9.7")

    def observe_drafting(self, num_passes: int, num_rows: int, seconds: float) -> None:
        """Learn how long the drafts of a step took: `num_passes` passes, with `num_rows` rows in total.

        A draft of k tokens has a row in each of k passes. Text that is looked up has one pass in all. A time of
        more than four times the expected one counts as four times.
        """
        raise NotImplementedError("task 3.9.7")

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        raise NotImplementedError("task 3.9.7")

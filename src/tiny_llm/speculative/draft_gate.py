"""How long a draft is worth its time: from measured seconds, and from what was accepted before."""

from tiny_llm_lab.types import AllDrafts


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
        raise NotImplementedError("task 3.9.7")

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step in which `num_requests` decode."""
        raise NotImplementedError("task 3.9.7")

    def length(self, request_id: str, most: int) -> int:
        """Returns how many tokens a draft of this request should have in the step that began, 0 to `most`.

        The first draft of a request has one token, and after s measured steps none has more than s. Changes
        nothing.
        """
        raise NotImplementedError("task 3.9.7")

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> float:
        """Learn from a decode of a request how many tokens of its draft were accepted. 0, 0: it had none.

        Returns the seconds that the request's account has grown by, below 0 if the draft cost more.
        """
        raise NotImplementedError("task 3.9.7")

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step with only decodes and their drafts took, without the making of drafts.

        It had `num_rows` rows. A step of more than twice the expected time counts as twice. After one of less
        than half, what was measured before is forgotten.
        """
        raise NotImplementedError("task 3.9.7")

    def observe_drafting(self, num_passes: int, num_rows: int, seconds: float) -> None:
        """Learn how long the drafts of a step took: `num_passes` passes, `num_rows` rows in total.

        A draft of k tokens has a row in each of k passes, and one that is looked up has one row in one pass.
        Times count as in `observe_step`.
        """
        raise NotImplementedError("task 3.9.7")

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        raise NotImplementedError("task 3.9.7")

"""How often drafts are accepted."""


class SpecDecodeStats:
    """How many tokens were drafted and how many accepted; the counters have vLLM's names."""

    def __init__(self) -> None:
        """Set num_drafts, num_draft_tokens, num_accepted_tokens to 0, num_accepted_tokens_per_pos to []."""
        raise NotImplementedError("task 3.9.5")

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one draft; an empty one is none. The bonus or replacement token is no accepted one.

        Entry i of num_accepted_tokens_per_pos counts the drafts whose token i was accepted; the list is as
        long as the longest draft. Raises ValueError when more were accepted than drafted.
        """
        raise NotImplementedError("task 3.9.5")

    @property
    def acceptance_rate(self) -> float | None:
        """The share of draft tokens that were accepted; None without drafts."""
        raise NotImplementedError("task 3.9.5")

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that a step with a draft brings, the bonus or replacement included; None without drafts."""
        raise NotImplementedError("task 3.9.5")

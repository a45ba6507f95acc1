"""The token budget of each step, from a latency policy, and the step times that the policy learns from."""

from collections.abc import Callable, Sequence

from tiny_llm_lab.types import Slice, attention_tokens

from ..scheduler import Scheduler
from ..sequence import TokenSequence, clamp_new_tokens
from .latency_policy import DecodeWork, LatencyPolicy, PrefillWork


class BudgetController:
    """Asks a `LatencyPolicy` for the budget of each step, and records measured times in its model."""

    def __init__(self, policy: LatencyPolicy) -> None:
        """Sets policy."""
        self.policy = policy

    def token_budget(
        self, now_s: float, scheduler: Scheduler, last_token_s: Callable[[str], float]
    ) -> int | None:
        """Returns the token budget of the scheduler's next step; None = no limit, or no prompt to compute.

        The policy gets the sequences that can get tokens in this step, in the scheduler's order: by priority
        class, running before waiting, and waiting sequences only up to max_num_seqs and
        max_num_batched_tokens. A decode takes one token and its draft; a prompt takes its missing tokens up
        to long_prefill_token_threshold. `last_token_s` returns the time of a request's last token.
        """
        config, decodes, prefills = scheduler.config, list[DecodeWork](), list[PrefillWork]()
        threshold = config.long_prefill_token_threshold
        for rank in scheduler.queue.ranks:
            running = scheduler.queue.running_of(rank)
            decodes += [_decode(each, last_token_s(each.request_id)) for each in running if each.is_decoding]
            prefills += [_prefill(each, threshold) for each in running if not each.is_decoding]
            planned: list[DecodeWork | PrefillWork] = [*decodes, *prefills]
            room = config.max_num_batched_tokens - sum(work.num_new for work in planned)
            for each in scheduler.queue.candidates(rank, config.max_num_seqs):
                if room <= 0:
                    break
                prefills.append(_prefill(each, threshold))
                room -= prefills[-1].num_new
        return self.policy.token_budget(now_s, decodes, prefills) if prefills else None

    def record(self, slices: Sequence[Slice], seconds: float) -> None:
        """Record how many seconds a step with `slices` took."""
        num_tokens = sum(each.num_new for each in slices)
        attention = sum(attention_tokens(each.num_computed, each.num_new) for each in slices)
        kv_read = sum(each.num_computed + each.num_new for each in slices)
        if num_tokens and seconds > 0:  # a coarse clock may measure 0
            self.policy.model.record(num_tokens, attention, kv_read, seconds)


def _decode(sequence: TokenSequence, last_token_s: float) -> DecodeWork:
    num_new = sequence.num_tokens_with_spec - sequence.num_computed_tokens
    return DecodeWork(sequence.num_computed_tokens, last_token_s, sequence.priority_class, num_new)


def _prefill(sequence: TokenSequence, threshold: int) -> PrefillWork:
    missing = sequence.num_tokens - sequence.num_computed_tokens
    num_new = clamp_new_tokens(missing, threshold, missing)
    return PrefillWork(sequence.num_computed_tokens, num_new, sequence.arrival_s, sequence.priority_class)

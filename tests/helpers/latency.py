"""A latency policy on a step-time model without surprises."""


class PerToken:
    """A millisecond per token and a microsecond per attended token."""

    def __init__(self):
        self.asked, self.shares = [], []

    def margin(self, share):
        self.shares.append(share)
        return 1.0 + 0.25 * len(self.shares)

    def predict(self, num_tokens, attention, kv_read=0):
        self.asked.append((num_tokens, attention, kv_read))
        return 1e-3 * num_tokens + 1e-6 * attention


def policy_of(llm, itl_slo_s=0.1, ttft_slo_s=None, **options):
    return llm.LatencyPolicy(PerToken(), itl_slo_s, ttft_slo_s, **{"safety": 1.0, **options})


def decoding(llm, *ages_s, now_s=5.0, num_computed=0, **options):
    return [llm.DecodeWork(num_computed, now_s - age_s, **options) for age_s in ages_s]

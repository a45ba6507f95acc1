"""What a peer reports, in the terms of our own rates."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from tiny_llm_lab.bench.peers import PeerSpec
from tiny_llm_lab.bench.throughput.rates import Rates


def answer(
    spec: PeerSpec,
    prefill_tokens: int,
    prefill_s: Sequence[float],
    steps_s: Sequence[float],
    weights_bytes: int,
    kv_bytes_per_token: int,
    facts: Mapping[str, str],
) -> dict[str, Any]:
    """The sample of one run: prefills of `prefill_tokens` each, then steps of one token per request.

    The first step is left out, as it is of ours: some engines set something up in it.
    """
    step_s = fmean(steps_s[1:])
    # The step at place p stores its own token before it attends to p + 1 of them.
    context = spec.prompt_len + 1 + len(steps_s) / 2
    rates = Rates(
        prefill_tok_s=prefill_tokens / median(prefill_s),
        decode_tok_s=spec.batch / step_s,
        decode_step_s=step_s,
        context=context,
    )
    return asdict(rates) | {
        "weights_bytes": weights_bytes,
        "kv_bytes_per_token": kv_bytes_per_token,
        "facts": dict(facts),
    }

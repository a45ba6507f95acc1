"""What running answers sit through while a long prompt is computed and joins them, in seconds and in bytes.

python -m tests.helpers.join_gap --prefill-step 128
"""

import argparse
import itertools
import statistics
import sys
import time

import numpy as np

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import Checkpoint, Event, PrefillEvent, Prompt, SamplingParams, TokenEvent

LATE_S = 0.2  # the long prompt comes when the short ones decode


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--solution", default="ref")
    parser.add_argument("--prefill-step", type=int, default=128)
    parser.add_argument("--decodes", type=int, default=30)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    args = parser.parse_args(argv)
    checkpoint = load_checkpoint(args.model)
    limit = checkpoint.config.max_position_embeddings
    num_long = min(args.prompt_tokens, limit - 16)
    chunks, ticks = run(checkpoint, args.solution, args.decodes, num_long, args.prefill_step)
    first, last = chunks[0], chunks[-1]
    gaps = [(b - a, b) for a, b in itertools.pairwise(ticks) if a >= first]
    with_chunk = [gap for gap, end in gaps if end < last]
    # The first gap that ends after the last chunk holds that chunk; the prompt joins in the next one.
    joining = max([gap for gap, end in gaps if end >= last][1:3])
    print(
        f"{args.decodes} decodes + {num_long} tokens, prefill_step {args.prefill_step}: gaps with a chunk "
        f"{statistics.median(with_chunk) * 1e3:.0f} ms (median), {max(with_chunk) * 1e3:.0f} ms (longest); "
        f"at the join {joining * 1e3:.0f} ms"
    )
    return 0


def run(
    checkpoint: Checkpoint, solution: str, num_decodes: int, num_long: int, prefill_step: int
) -> tuple[list[float], list[float]]:
    """When the long prompt's chunks ended, and when the first decode's tokens came, in seconds."""
    llm, limit = load_solution(solution), checkpoint.config.max_position_embeddings
    chunks: list[float] = []
    ticks: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, PrefillEvent) and event.prompt_idx == num_decodes:
            chunks.append(event.time_s)
        if isinstance(event, TokenEvent) and event.prompt_idx == 0:
            ticks.append(event.time_s)

    llm.batch_generate(
        llm.build_model(checkpoint),
        checkpoint.tokenizer,
        prompts_of(checkpoint, num_decodes, num_long, prefill_step),
        max_seq_len=limit,
        batch_size=num_decodes + 1,
        prefill_step=prefill_step,
        on_event=watch,
        clock=time.perf_counter,
    )
    return chunks, ticks


def prompts_of(checkpoint: Checkpoint, num_decodes: int, num_long: int, prefill_step: int) -> list[Prompt]:
    """Short prompts whose answers are long enough to decode when the long prompt, the last one, joins."""
    rng, vocab = np.random.default_rng(0), checkpoint.config.vocab_size
    num_chunks = -(-num_long // prefill_step)
    longest = checkpoint.config.max_position_embeddings - 40
    num_tokens = min(longest, num_decodes + 2 * num_chunks + 60)

    def prompt(num_prompt: int, arrival_s: float, max_tokens: int) -> Prompt:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return Prompt(rng.integers(3, vocab, num_prompt).tolist(), sampling, arrival_s)

    return [*(prompt(16, 0.0, num_tokens) for _ in range(num_decodes)), prompt(num_long, LATE_S, 8)]


if __name__ == "__main__":
    sys.exit(main())

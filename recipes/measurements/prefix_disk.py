"""What a folder of prefixes costs while it is written, and what it saves after a restart.

python -m recipes.measurements.prefix_disk --model random:qwen3-0.6b,layers=4,vocab=2048 --rounds 5
"""

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from typing import Final

from recipes.measurements.show import show

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.types import SchedulerConfig

_COLUMNS: Final = tuple(
    Column(key, f"{key.replace('_cpu', ', CPU')} s", ".2f")
    for key in ("ttft", "ttft_cpu", "answers", "answers_cpu")
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.measurements.prefix_disk", description=__doc__)
    parser.add_argument("--model", default="random:qwen3-0.6b,layers=4,vocab=2048")
    parser.add_argument("--tokens", type=int, default=8000, help="of the prompt (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="with and without a folder, in turn")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args()
    found = {side: dict[str, list[float]]() for side in ("off", "writing", "restarted")}
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for side in (("off", ""), ("writing", folder))[:: 1 if number % 2 else -1]:
                _measure(found[side[0]], args, number, side[1])
            _measure(found["restarted"], args, number, folder)
    about = f"A prompt of {args.tokens} tokens, then 16 answers of 64"
    show("prefix-disk", [Section("prefix-disk", about, _COLUMNS, [Row(*each) for each in found.items()])])


def _measure(found: dict[str, list[float]], args: argparse.Namespace, seed: int, folder: str) -> None:
    """TTFT of the prompt, then the seconds of the answers; and CPU seconds of both."""
    rng = random.Random(seed)
    prompt = [rng.randrange(1, 250) for _ in range(args.tokens)]
    others = [[rng.randrange(1, 250) for _ in range(100)] for _ in range(16)]
    config = SchedulerConfig(max_model_len=args.tokens + 200, max_num_batched_tokens=256)
    with LLM(args.model, config=config, kv_cache_memory="2G", prefix_cache_dir=folder or None) as llm:
        for what, prompts, count in (("ttft", [prompt], 1), ("answers", others, 64)):
            took = _seconds(llm, prompts, count)
            for column, seconds in zip((what, f"{what}_cpu"), took, strict=True):
                found.setdefault(column, []).append(seconds)


def _seconds(llm: LLM, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, float]:
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    llm.generate(prompts, SamplingParams(max_tokens=count, ignore_eos=True))
    return time.perf_counter() - start_s, time.process_time() - start_cpu_s


if __name__ == "__main__":
    main()

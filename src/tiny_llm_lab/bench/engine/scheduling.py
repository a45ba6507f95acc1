"""`scheduler`: what planning a step costs beside computing it, and how that grows with the requests."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.harness import Variant, time_variants
from tiny_llm_lab.bench.report import Column, Ratio, Row, Section
from tiny_llm_lab.steps.shapes import decodes
from tiny_llm_lab.types import SchedulerConfig

from .config import BLOCK_SIZE, BenchConfig

COUNTS: Final = (8, 64, 512)
# Of the computed step: short, so that 512 of them fit, which makes the scheduler's share look larger.
_STORED: Final = BLOCK_SIZE - 2
_STEPS: Final = 8  # planned in one turn: one alone is too short for the clock
_COLUMNS: Final = (
    Column("plan_s", "ms/step (min-max)", ".3f", 1e3, "beside"),
    Column("plan_s_per_request", "µs/request", ".2f", 1e6),
    Column("model_s", "model ms", ".3f", 1e3),
    Column("share", "share", ".2%"),
)


def scheduler(config: BenchConfig) -> Section:
    """`schedule` and `commit` of running decodes without a model, in turns with a model's step of as many."""
    steps = {count: decodes(count, _STORED) for count in COUNTS}
    with config.runner(list(steps.values())) as runner:
        variants = []
        for count, step in steps.items():
            plan = decoding(config.llm, count, config.context, (config.rounds + 1) * _STEPS)
            variants += [Variant(f"plan {count}", plan), Variant(f"model {count}", partial(runner.run, step))]
        return section(time_variants(variants, config.rounds), config.context)


def decoding(llm: Any, count: int, context: int, num_steps: int) -> Callable[[], None]:
    """Plans and commits `_STEPS` steps of `count` running decodes, which have room for `num_steps`."""
    length = context + num_steps + 2
    pool = llm.BlockPool(count * -(-length // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(max_num_batched_tokens=count * context, max_num_seqs=count, max_model_len=length)
    scheduler = llm.Scheduler(config, pool, llm.PrefixCache(pool))
    for number in range(count):
        # Prompts differ in their first token: no block is shared.
        scheduler.add(llm.TokenSequence(str(number), [number, *range(1, context)]))
    sampled = {str(number): [7] for number in range(count)}
    scheduler.commit(scheduler.schedule(), sampled)

    def some_steps() -> None:
        for _ in range(_STEPS):
            scheduler.commit(scheduler.schedule(), sampled)

    return some_steps


def section(seconds: dict[str, tuple[float, ...]], context: int) -> Section:
    """The cost of a step and of a request in it, beside the model's step."""
    rows = []
    for count in COUNTS:
        plans, model = [value / _STEPS for value in seconds[f"plan {count}"]], seconds[f"model {count}"]
        samples = {
            "plan_s": plans,
            "plan_s_per_request": [value / count for value in plans],
            "model_s": model,
            "share": [median(plans) / median(model)],
        }
        rows.append(Row(f"{count} decodes", samples))
    _, fewer, more = (row.samples["plan_s_per_request"] for row in rows)
    return Section(
        "scheduler",
        f"scheduler: schedule() and commit() of decodes at context {context}, no model",
        _COLUMNS,
        rows,
        [Ratio.of(f"time per request, {COUNTS[2]} / {COUNTS[1]}", more, fewer)],
        [f"The model's step has contexts of {_STORED} tokens only; a longer one takes longer to compute."],
    )

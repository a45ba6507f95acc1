"""`scheduler`: what planning a step costs beside computing it, and how that grows with the requests."""

from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.step_runner import StepRunner
from tiny_llm_lab.step_shapes import decodes
from tiny_llm_lab.types import SchedulerConfig

from .report import Report
from .setting import BLOCK_SIZE, Setting
from .turns import Seconds, Side, ratio, take_turns

COUNTS: Final = (8, 64, 512)
# Of the step that is computed: short, so that 512 of them fit, which makes the scheduler's share look larger.
_STORED: Final = BLOCK_SIZE - 2
_STEPS: Final = 8  # planned in one turn: one alone is too short for the clock


def scheduler(setting: Setting) -> Report:
    """`schedule` and `commit` of running decodes without a model, in turns with a model's step of as many."""
    steps = {count: decodes(count, _STORED) for count in COUNTS}
    runner = StepRunner(setting.llm, setting.model, list(steps.values()), setting.seed)
    sides = []
    for count, step in steps.items():
        plan = decoding(setting.llm, count, setting.context, (setting.rounds + 1) * _STEPS)
        sides += [Side(f"plan {count}", plan), Side(f"model {count}", partial(runner.run, step))]
    seconds = take_turns(sides, setting.rounds)
    runner.release()
    return scheduler_report(seconds, setting.context)


def decoding(llm: Any, count: int, context: int, num_steps: int) -> Any:
    """Plans and commits `_STEPS` steps of `count` running decodes, which have room for `num_steps`."""
    length = context + num_steps + 2
    pool = llm.BlockPool(count * -(-length // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(max_num_batched_tokens=count * context, max_num_seqs=count, max_model_len=length)
    scheduler = llm.Scheduler(config, pool, llm.PrefixCache(pool))
    for number in range(count):
        # The first token tells the prompts apart: nobody shares a block.
        scheduler.add(llm.TokenSequence(str(number), [number, *range(1, context)]))
    sampled = {str(number): [7] for number in range(count)}
    scheduler.commit(scheduler.schedule(), sampled)

    def some_steps() -> None:
        for _ in range(_STEPS):
            scheduler.commit(scheduler.schedule(), sampled)

    return some_steps


def scheduler_report(seconds: Seconds, context: int) -> Report:
    """The cost of a step and of a request in it, beside the model's step."""
    rows, data = [], []
    per_request = {}
    for count in COUNTS:
        plans = [value / _STEPS for value in seconds[f"plan {count}"]]
        model_s = median(seconds[f"model {count}"])
        plan_s = median(plans)
        per_request[count] = [value / count for value in plans]
        rows.append(
            (
                f"{count} decodes",
                f"{plan_s * 1e3:.3f}",
                f"{min(plans) * 1e3:.3f}",
                f"{max(plans) * 1e3:.3f}",
                f"{plan_s / count * 1e6:.2f}",
                f"{model_s * 1e3:.3f}",
                f"{plan_s / model_s:.2%}",
            )
        )
        data.append({"decodes": count, "plan_s": plans, "model_s": list(seconds[f"model {count}"])})
    return Report(
        "scheduler",
        f"schedule() and commit() of decodes at context {context}, no model",
        ("running", "ms/step", "min", "max", "µs/request", "model ms", "share"),
        rows,
        [
            ratio(
                f"time per request, {COUNTS[2]} / {COUNTS[1]}", per_request[COUNTS[2]], per_request[COUNTS[1]]
            )
        ],
        [f"The model's step has contexts of {_STORED} tokens only; a longer one takes longer to compute."],
        {"counts": data},
    )

"""The experiments that time steps of the engine and of its scheduler, variants in turns."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, Final

import mlx.core as mx

from benchmarks.engine.config import BLOCK_SIZE, BenchConfig
from benchmarks.harness import Variant, Versus, time_variants, timed_section
from tiny_llm_lab.measure.bench.report import Aim, Column, Ratio, Row, Section
from tiny_llm_lab.runtime.steps.runner import chunk, decodes
from tiny_llm_lab.types import BatchSettings, SchedulerConfig

# Aims of a mixed step relative to its chunk alone, and of the engine's speed relative to dense rows.
_MIXED_AIM, _PAGED_AIM = Aim(at_most=1.15), Aim(at_least=0.95)
_PREFILL_STEP: Final = 512
_WARM_UPS: Final = 2
_AHEAD_STEPS: Final = 16  # in one turn: time can only be gained between two of them
COUNTS: Final = (8, 64, 512)
# Of the computed step: short, so that 512 of them fit, which makes the scheduler's share look larger.
_STORED: Final = BLOCK_SIZE - 2
_PLANNED: Final = 8  # in one turn: one alone is too short for the clock
_PLAN_COLUMNS: Final = (
    Column("plan_s", "ms/step (min-max)", ".3f", 1e3, has_spread=True),
    Column("plan_s_per_request", "µs/request", ".2f", 1e6),
    Column("model_s", "model ms", ".3f", 1e3),
    Column("share", "share", ".2%"),
)


def mixed(config: BenchConfig) -> Section:
    """The time that decodes add to a chunk's step, and their time in a step of their own."""
    config.require_room(config.context + config.chunk, "--context and --chunk")
    riders = decodes(config.streams, config.context)
    steps, ratios = {"decodes": [riders]}, []
    for stored in (0, config.context):
        piece = chunk(stored, config.chunk)
        alone, together, apart = (f"{name} at {stored}" for name in ("chunk", "mixed", "two steps"))
        steps |= {alone: [piece], together: [piece + riders], apart: [piece, riders]}
        ratios += [
            Versus(f"mixed / chunk alone, chunk at {stored}", together, alone, _MIXED_AIM),
            Versus(f"mixed / chunk, then decodes, chunk at {stored}", together, apart),
        ]
    what = f"a chunk of {config.chunk} tokens with {config.streams} decodes at context {config.context}"
    note = "The chunk alone samples no token; the output head's work counts for the decodes."
    return timed_section("mixed", f"mixed: {what}", config.time_steps(steps), ratios, [note])


def paged(config: BenchConfig) -> Section:
    """A decode step of the engine, over blocks, against the batch loop of week 2, over dense rows."""
    length = config.context + config.rounds + _WARM_UPS + 1
    step = decodes(config.streams, config.context)
    names = ("Engine.step", "handle_decode_phase", "forward pass alone")
    with ExitStack() as stack:
        engine = config.decoding_engine(config.streams, length, async_scheduling=False)
        stack.callback(engine.release)
        dense = _dense(config, length)
        stack.callback(dense.release)
        runner = stack.enter_context(config.runner([step]))
        # The contexts of both grow together.
        runs = (engine.step, dense.handle_decode_phase, partial(runner.run, step))
        seconds = time_variants([*map(Variant, names, runs)], config.rounds, warm_ups=_WARM_UPS)
    around = 1 - median(seconds[names[2]]) / median(seconds[names[0]])
    return timed_section(
        "paged",
        f"paged: a decode step of {config.streams} streams at context {config.context}, {config.sampling}",
        seconds,
        [Versus("speed of the engine / of the dense batch", names[1], names[0], _PAGED_AIM)],
        [f"{around:.1%} of the engine's step is outside the forward pass: planning, text and accounting."],
    )


def _dense(config: BenchConfig, length: int) -> Any:
    dense = config.llm.BatchGenerator(
        config.model,
        config.checkpoint.tokenizer,
        config.asked(config.streams, length),
        BatchSettings(
            max_seq_len=length,
            batch_size=config.streams,
            prefill_step=_PREFILL_STEP,
            async_scheduling=False,  # like the engine's steps, each is timed to its end
        ),
    )
    while len(dense.decode_requests) < config.streams:
        dense.handle_prefill_phase()
        dense.move_prefill_to_decode()
    return dense


def ahead(config: BenchConfig) -> Section:
    """Decode steps that launch before the last one is read, compared with steps that wait for it."""
    length = config.context + (config.rounds + 1) * _AHEAD_STEPS + 2
    names = {
        streams: (f"each read first, {streams} streams", f"a step ahead, {streams} streams")
        for streams in sorted({1, config.streams})
    }
    with ExitStack() as stack:
        variants = []
        for streams, pair in names.items():
            for name, is_ahead in zip(pair, (False, True), strict=True):
                engine = config.decoding_engine(streams, length, async_scheduling=is_ahead)
                stack.callback(engine.release)
                variants.append(Variant(name, partial(_repeat, engine.step, _AHEAD_STEPS)))
        held_bytes = mx.get_active_memory()
        mx.reset_peak_memory()
        seconds = time_variants(variants, config.rounds)
        # A step ahead that finds the pools in use copies them, which shows in the peak.
        memory = {"held_bytes": held_bytes, "peak_bytes": mx.get_peak_memory()}
    steps = {name: [value / _AHEAD_STEPS for value in values] for name, values in seconds.items()}
    ratios = [
        Versus(f"speed a step ahead / each read first, {streams} streams", *pair)
        for streams, pair in names.items()
    ]
    saved = [
        f"{(median(steps[usual]) - median(steps[faster])) * 1e3:.2f} ms" for usual, faster in names.values()
    ]
    title = f"ahead: decode steps at context {config.context}, {_AHEAD_STEPS} in a turn, {config.sampling}"
    above = (memory["peak_bytes"] - held_bytes) / 1e6
    notes = [f"Saved in a step: {', '.join(saved)}. Peak memory: {above:.0f} MB above before."]
    return timed_section("ahead", title, steps, ratios, notes, **memory)


def scheduler(config: BenchConfig) -> Section:
    """The cost of planning a step compared with computing it, and how it grows with the requests."""
    steps = {count: decodes(count, _STORED) for count in COUNTS}
    with config.runner(list(steps.values())) as runner:
        variants = []
        for count, step in steps.items():
            plan = decoding(config.llm, count, config.context, (config.rounds + 1) * _PLANNED)
            variants += [Variant(f"plan {count}", plan), Variant(f"model {count}", partial(runner.run, step))]
        seconds = time_variants(variants, config.rounds)
    rows = []
    for count in COUNTS:
        plans, model = [value / _PLANNED for value in seconds[f"plan {count}"]], seconds[f"model {count}"]
        each = [value / count for value in plans]
        share = [median(plans) / median(model)]
        samples = {"plan_s": plans, "plan_s_per_request": each, "model_s": model, "share": share}
        rows.append(Row(f"{count} decodes", samples))
    fewer, more = (row.samples["plan_s_per_request"] for row in rows[1:])
    return Section(
        "scheduler",
        f"scheduler: schedule() and commit() of decodes at context {config.context}, no model",
        _PLAN_COLUMNS,
        rows,
        [Ratio.of(f"time per request, {COUNTS[2]} / {COUNTS[1]}", more, fewer)],
        [f"The model's step has contexts of only {_STORED} tokens; longer ones take longer."],
    )


def decoding(llm: Any, count: int, context: int, num_steps: int) -> Callable[[], None]:
    """Plans and commits `_PLANNED` steps of `count` running decodes, which have room for `num_steps`."""
    length = context + num_steps + 2
    pool = llm.BlockPool(count * -(-length // BLOCK_SIZE), BLOCK_SIZE)
    config = SchedulerConfig(max_num_batched_tokens=count * context, max_num_seqs=count, max_model_len=length)
    scheduler = llm.Scheduler(config, pool, llm.PrefixCache(pool))
    for number in range(count):
        # Prompts differ in their first token: no block is shared.
        scheduler.add(llm.TokenSequence(str(number), [number, *range(1, context)]))
    sampled = {str(number): [7] for number in range(count)}

    def step() -> None:
        scheduler.commit(scheduler.schedule(), sampled)

    step()
    return partial(_repeat, step, _PLANNED)


def _repeat(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()

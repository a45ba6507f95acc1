"""`mixed`: what decodes cost that ride along with a chunk, and what they would cost in their own step."""

from functools import partial

from tiny_llm_lab.step_runner import StepRunner
from tiny_llm_lab.step_shapes import Step, chunk, decodes

from .report import Report
from .setting import Setting
from .turns import TIME_COLUMNS, Seconds, Side, ratio, take_turns, times_row

# What riding along may add to a chunk.
AIM = 1.15


def mixed(setting: Setting) -> Report:
    """A chunk alone, the decodes alone, both in one step, and in two; at the start and deep in a prompt."""
    setting.require_room(setting.context + setting.chunk, "--context and --chunk")
    riders = decodes(setting.streams, setting.context)
    steps: list[Step] = [chunk(stored, setting.chunk) + riders for stored in (0, setting.context)]
    runner = StepRunner(setting.llm, setting.model, steps, setting.seed)

    def two(piece: Step) -> None:
        runner.run(piece)
        runner.run(riders)

    sides = [Side("decodes", partial(runner.run, riders))]
    for stored in (0, setting.context):
        piece = chunk(stored, setting.chunk)
        sides += [
            Side(f"chunk at {stored}", partial(runner.run, piece)),
            Side(f"mixed at {stored}", partial(runner.run, piece + riders)),
            Side(f"two steps at {stored}", partial(two, piece)),
        ]
    seconds = take_turns(sides, setting.rounds)
    runner.release()
    return mixed_report(seconds, setting)


def mixed_report(seconds: Seconds, setting: Setting) -> Report:
    """The ratios of measured sides."""
    ratios = []
    for stored in (0, setting.context):
        together, alone, apart = (seconds[f"{name} at {stored}"] for name in ("mixed", "chunk", "two steps"))
        ratios += [
            ratio(f"mixed / chunk alone, chunk at {stored}", together, alone, at_most=AIM),
            ratio(f"mixed / chunk, then decodes, chunk at {stored}", together, apart),
        ]
    return Report(
        "mixed",
        f"a chunk of {setting.chunk} tokens with {setting.streams} decodes at context {setting.context}",
        TIME_COLUMNS,
        [times_row(name, values) for name, values in seconds.items()],
        ratios,
        ["The chunk alone draws no token; what the head computes for the decodes counts as theirs."],
        {"seconds": {name: list(values) for name, values in seconds.items()}},
    )

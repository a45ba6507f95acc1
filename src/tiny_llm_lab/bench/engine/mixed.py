"""`mixed`: what decodes add to a chunk in their step, and what they cost in a step of their own."""

from functools import partial
from typing import Final

from tiny_llm_lab.bench.harness import Variant, time_variants
from tiny_llm_lab.bench.report import Ratio, Section, timed_section
from tiny_llm_lab.steps.shapes import chunk, decodes

from .config import BenchConfig

AIM: Final = 1.15  # of a mixed step, over its chunk alone


def mixed(config: BenchConfig) -> Section:
    """A chunk alone, the decodes alone, both in one step, and in two; at the start and deep in a prompt."""
    config.require_room(config.context + config.chunk, "--context and --chunk")
    riders = decodes(config.streams, config.context)
    pieces = {stored: chunk(stored, config.chunk) for stored in (0, config.context)}
    with config.runner([piece + riders for piece in pieces.values()]) as runner:
        variants = [Variant("decodes", partial(runner.run, riders))]
        for stored, piece in pieces.items():
            steps = {"chunk": [piece], "mixed": [piece + riders], "two steps": [piece, riders]}
            variants += [
                Variant(f"{name} at {stored}", partial(lambda own: [runner.run(step) for step in own], own))
                for name, own in steps.items()
            ]
        return section(time_variants(variants, config.rounds), config)


def section(seconds: dict[str, tuple[float, ...]], config: BenchConfig) -> Section:
    """The mixed step against its chunk alone, and against two steps."""
    ratios = []
    for stored in (0, config.context):
        together, alone, apart = (seconds[f"{name} at {stored}"] for name in ("mixed", "chunk", "two steps"))
        ratios += [
            Ratio.of(f"mixed / chunk alone, chunk at {stored}", together, alone, at_most=AIM),
            Ratio.of(f"mixed / chunk, then decodes, chunk at {stored}", together, apart),
        ]
    what = f"a chunk of {config.chunk} tokens with {config.streams} decodes at context {config.context}"
    note = "The chunk alone samples no token; what the head computes for the decodes counts as theirs."
    return timed_section("mixed", f"mixed: {what}", seconds, ratios, [note])

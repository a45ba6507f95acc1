"""`paged`: a decode step of the engine, over blocks, against the batch loop of week 2, over dense rows."""

from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.harness import Variant, time_variants
from tiny_llm_lab.bench.report import Ratio, Section, timed_section
from tiny_llm_lab.steps.shapes import decodes
from tiny_llm_lab.types import Prompt

from .config import BenchConfig, exactly

AIM: Final = 0.95  # of the speed over dense rows
_PREFILL_STEP: Final = 512
_WARM_UPS: Final = 2


def paged(config: BenchConfig) -> Section:
    """The same streams in both, one step each in turn: their contexts grow together."""
    length = config.context + config.rounds + _WARM_UPS + 1
    config.require_room(length, "--context and --rounds")
    step = decodes(config.streams, config.context)
    engine, dense = config.decoding_engine(config.streams, length), _dense(config, length)
    try:
        with config.runner([step]) as runner:
            variants = [
                Variant("Engine.step", engine.step),
                Variant("handle_decode_phase", dense.handle_decode_phase),
                Variant("forward pass alone", partial(runner.run, step)),
            ]
            return section(time_variants(variants, config.rounds, warm_ups=_WARM_UPS), config)
    finally:
        engine.release()
        dense.release()


def section(seconds: dict[str, tuple[float, ...]], config: BenchConfig) -> Section:
    """The speed of the engine against the dense batch, and the share of its step around the forward pass."""
    ours, dense, forward = seconds.values()
    around = 1 - median(forward) / median(ours)
    return timed_section(
        "paged",
        f"paged: a decode step of {config.streams} streams at context {config.context}",
        seconds,
        [Ratio.of("speed of the engine / of the dense batch", dense, ours, at_least=AIM)],
        [f"{around:.1%} of the engine's step is not the forward pass: planning, text and accounting."],
    )


def _dense(config: BenchConfig, length: int) -> Any:
    sampling = exactly(length - config.context)
    dense = config.llm.BatchGenerator(
        config.model,
        config.checkpoint.tokenizer,
        [Prompt(tokens, sampling) for tokens in config.prompts(config.streams, config.context)],
        max_seq_len=length,
        batch_size=config.streams,
        prefill_step=_PREFILL_STEP,
    )
    while len(dense.decode_requests) < config.streams:
        dense.handle_prefill_phase()
        dense.move_prefill_to_decode()
    return dense

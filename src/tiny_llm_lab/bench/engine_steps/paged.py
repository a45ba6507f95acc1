"""`paged`: a decode step of the engine, over blocks, against the batch loop of week 2, over dense rows."""

from functools import partial
from statistics import median
from typing import Any

from tiny_llm_lab.step_runner import StepRunner
from tiny_llm_lab.step_shapes import decodes
from tiny_llm_lab.types import Prompt, SchedulerConfig

from .report import Report
from .setting import Setting, answering
from .turns import TIME_COLUMNS, Seconds, Side, ratio, take_turns, times_row

# Speed over blocks, as a share of the speed over dense rows.
AIM = 0.95
_PREFILL_STEP = 512
_WARM_UPS = 2


def paged(setting: Setting) -> Report:
    """The same streams in both, one step each in turn: their contexts grow together."""
    length = setting.context + setting.rounds + _WARM_UPS + 1
    setting.require_room(length, "--context and --rounds")
    prompts = setting.prompts(setting.streams, setting.context)
    sampling = answering(length - setting.context)
    engine = decoding_engine(setting, setting.streams, length)
    dense = _dense(setting, [Prompt(tokens, sampling) for tokens in prompts], length)
    forward = decodes(setting.streams, setting.context)
    runner = StepRunner(setting.llm, setting.model, [forward], setting.seed)
    sides = [
        Side("Engine.step", engine.step),
        Side("handle_decode_phase", dense.handle_decode_phase),
        Side("forward pass alone", partial(runner.run, forward)),
    ]
    try:
        seconds = take_turns(sides, setting.rounds, _WARM_UPS)
    finally:
        engine.release()
        dense.release()
        runner.release()
    return paged_report(seconds, setting)


def paged_report(seconds: Seconds, setting: Setting) -> Report:
    """The ratio of measured sides, as speeds."""
    ours, dense, forward = seconds.values()
    around = 1 - median(forward) / median(ours)
    return Report(
        "paged",
        f"a decode step of {setting.streams} streams at context {setting.context}",
        TIME_COLUMNS,
        [times_row(name, values) for name, values in seconds.items()],
        [ratio("speed of the engine / of the dense batch", dense, ours, at_least=AIM)],
        [f"Of the engine's step {around:.1%} is not the forward pass: plan, texts and books."],
        {"seconds": {name: list(values) for name, values in seconds.items()}},
    )


def decoding_engine(setting: Setting, streams: int, length: int, **others: Any) -> Any:
    """An engine with so many streams, all of which decode at setting.context, up to `length` tokens."""
    config = SchedulerConfig(
        max_num_batched_tokens=streams * setting.context, max_num_seqs=streams, max_model_len=length
    )
    engine = setting.engine(config, streams * length, **others)
    for number, tokens in enumerate(setting.prompts(streams, setting.context)):
        engine.add(str(number), tokens, answering(length - setting.context))
    engine.step()  # all prompts at once, so that nobody has more tokens than the others
    return engine


def _dense(setting: Setting, prompts: list[Prompt], length: int) -> Any:
    dense = setting.llm.BatchGenerator(
        setting.model,
        setting.checkpoint.tokenizer,
        prompts,
        max_seq_len=length,
        batch_size=setting.streams,
        prefill_step=_PREFILL_STEP,
    )
    while len(dense.decode_requests) < setting.streams:
        dense.handle_prefill_phase()
        dense.move_prefill_to_decode()
    return dense

"""`drafts`: how much looked-up drafts speed up answers that quote, and slow down answers that don't."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.engine.config import BLOCK_SIZE, BenchConfig
from tiny_llm_lab.measure.bench.report import NO_AIM, Aim, Column, Metrics, Ratio, Row, Section
from tiny_llm_lab.measure.corpus.recall import recall_questions
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import Clock, EngineOutput, SamplingParams, SchedulerConfig

PLAIN: Final = "no drafts"
GATED: Final = ", gated"
LENGTHS: Final = range(2, 9)
QUOTED, INVENTED = "quotes", "stories"
# The gate compared with no drafts: what it must gain on answers that quote, and may lose on others.
_AIMS: Final = {QUOTED: Aim(at_least=1.8), INVENTED: Aim(at_least=0.97)}
_COLUMNS: Final = (
    Column("tokens_per_s", "tok/s (min-max)", ".0f", has_spread=True),
    Column("tokens_per_cpu_s", "tok/CPU s", ".0f"),
    Column("tokens_per_step", "tokens/step", ".2f"),
    Column("rows_per_step", "rows/step", ".2f"),
    Column("acceptance", "accepted", ".0%"),
)
_SPEEDS: Final = {"tokens_per_s": "speed", "tokens_per_cpu_s": "speed by CPU time"}
_NUM_QUESTIONS: Final = 12
_LONGEST: Final = 64  # tokens of an answer
_BEGINNINGS: Final = ("Once upon a time", "One day a", "There was a little", "In the garden", "The old man")
_ABOUT: Final = (
    f"{QUOTED}: greedy answers about notes in the prompt; {INVENTED}: drawn at temperature 1. Decodes only, "
    "sides alternate at every prompt; we leave out a first round, in which the gate learns. CPU time is "
    "the sum over all threads; other programs disturb it less than elapsed time."
)


@dataclass(frozen=True)
class Text:
    """Prompts that one stream answers one after another."""

    name: str
    prompts: Sequence[str]
    sampling: SamplingParams


@dataclass
class Side:
    """An engine with one way to draft; what it answered, by prompt, and what it counted in each round."""

    name: str
    engine: Any
    answers: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)
    counts: dict[int, Counter[str]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)  # by each clock

    def serve(self, text: Text, prompt: int, round_number: int, clocks: Sequence[Clock]) -> None:
        """Answer a prompt; all counts begin after its first token, and the end counts as a token."""
        before, tokens, counts = self._drafted(), list[int](), Counter[str]()
        self.engine.add("0", text.prompts[prompt], text.sampling)
        start_s = [clock() for clock in clocks]
        while self.engine.has_requests:
            outputs = self.engine.step()
            if tokens:
                counts["steps"] += 1
            else:
                start_s = [clock() for clock in clocks]
            tokens += [token for each in outputs for token in each.token_ids]
            counts["tokens"] += sum(_is_stopped(each) for each in outputs)
        took_s = [clock() - start for clock, start in zip(clocks, start_s, strict=True)]
        counts["tokens"] += len(tokens) - 1
        counts.update(self._drafted() - before)
        self.answers.setdefault(prompt, set()).add(tuple(tokens))
        self.counts.setdefault(round_number, Counter()).update(counts)
        before_s = self.seconds.get(round_number, [0.0] * len(clocks))
        self.seconds[round_number] = [old + new for old, new in zip(before_s, took_s, strict=True)]

    def row(self, text: Text) -> Row:
        """What each round says, without warm-ups."""
        return Row.of_runs(
            f"{text.name}, {self.name}",
            [_metrics(counts, self.seconds[i]) for i, counts in sorted(self.counts.items()) if i >= 0],
        )

    def _drafted(self) -> Counter[str]:
        stats = self.engine.core.spec_stats
        known = (stats.num_draft_tokens, stats.num_accepted_tokens) if stats else (0, 0)
        return Counter(dict(zip(("drafted", "accepted"), known, strict=True)))


def drafts(config: BenchConfig, clocks: Sequence[Clock] = (time.perf_counter, time.process_time)) -> Section:
    """Runs one stream on text of both kinds, with every way to draft, in turns."""
    rows, ratios, differ = list[Row](), list[Ratio | None](), list[str]()
    for text in texts_of(config):
        num_prompts = len(text.prompts)
        with ExitStack() as stack:
            sides = sides_of(config, text, stack)
            for turn, side in interleave(sides, config.rounds * num_prompts, warm_ups=num_prompts):
                side.serve(text, turn % num_prompts, turn // num_prompts, clocks)
        plain, *others = [side.row(text) for side in sides]
        rows += [plain, *others]
        ratios += [_faster(row, plain, text, key) for key in _SPEEDS for row in others]
        differ += [f"{text.name}, {side.name}" for side in sides if side.answers != sides[0].answers]
    said = (
        f"Answers DIFFER with {'; '.join(differ)}." if differ else "Answers are the same as without drafts."
    )
    title = f"drafts: one stream, notes of {config.context} tokens, looked-up drafts of k tokens"
    return Section("drafts", title, _COLUMNS, rows, ratios, [said, _ABOUT], {"differ": differ})


def texts_of(config: BenchConfig) -> list[Text]:
    """What the default model was trained for: questions about notes, and stories."""
    tokenizer = config.checkpoint.tokenizer
    questions = recall_questions(config.seed, _NUM_QUESTIONS, config.context, tokenizer.encode)
    quoted = [as_chat(tokenizer, question.user) for question in questions]
    drawn = SamplingParams(max_tokens=_LONGEST, temperature=1.0, seed=config.seed)
    return [Text(QUOTED, quoted, SamplingParams(max_tokens=16)), Text(INVENTED, _BEGINNINGS, drawn)]


def sides_of(config: BenchConfig, text: Text, stack: ExitStack) -> list[Side]:
    """An engine for each way to draft, the first without; a prompt is computed once, and then cached."""
    llm, length = config.llm, config.context + _LONGEST
    config.require_room(length, "--context")
    plain = EngineSettings(
        SchedulerConfig(max_num_seqs=1, max_model_len=length),
        block_size=BLOCK_SIZE,
        async_scheduling=False,
        num_blocks=(len(text.prompts) + 1) * -(-length // BLOCK_SIZE),
    )
    drafting = replace(plain, speculate="ngram", draft_gate=False)
    ways = {PLAIN: plain}
    ways |= {f"k = {k}": replace(drafting, num_speculative_tokens=k) for k in LENGTHS}
    ways |= {f"k = {k}{GATED}": replace(drafting, num_speculative_tokens=k, draft_gate=True) for k in (4, 8)}
    sides = []
    for name, settings in ways.items():
        engine = build_engine(llm, Loaded(config.checkpoint, llm, config.model), settings)
        stack.callback(engine.release)
        sides.append(Side(name, engine))
    return sides


def _is_stopped(output: EngineOutput) -> bool:
    return output.completion is not None and output.completion.finish_reason == "stop"


def _metrics(counts: Counter[str], seconds: Sequence[float]) -> Metrics:
    tokens, steps, drafted = counts["tokens"], counts["steps"], counts["drafted"]
    return {
        **{key: tokens / each for key, each in zip(_SPEEDS, seconds, strict=True)},
        "tokens_per_step": tokens / steps,
        "rows_per_step": 1 + drafted / steps,
        "acceptance": counts["accepted"] / drafted if drafted else None,
    }


def _faster(row: Row, plain: Row, text: Text, key: str) -> Ratio | None:
    aim = _AIMS[text.name] if row.name.endswith(GATED) else NO_AIM
    name = f"{_SPEEDS[key]}, {row.name} / {PLAIN}"
    return Ratio.of(name, row.samples[key], plain.samples[key], aim)

"""`features`: what a field of a request adds to a step, compared with greedy decoding."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

import mlx.core as mx

from benchmarks.engine.config import BLOCK_SIZE, BenchConfig
from benchmarks.harness import Variant, time_variants
from tiny_llm_lab.measure.bench.report import TIME, Column, Row, Section
from tiny_llm_lab.measure.bench.spec import at_once, prompts_of
from tiny_llm_lab.runtime.structured.grammars import Grammars, processors_for
from tiny_llm_lab.types import (
    Draft,
    EngineOptions,
    Proposer,
    SamplingParams,
    SchedulerConfig,
    StructuredOutputs,
)
from tiny_llm_lab.types.computing.paged import PagedCache, Slice
from tiny_llm_lab.types.computing.wanted import Wanted

_WARM_UPS: Final = 3  # the first of them computes the prompts
_MOST: Final = 999  # tokens of an answer, more than are measured; and strings of the JSON schema: no end
_FORM: Final = {"type": "array", "items": {"type": "string"}, "minItems": _MOST}
_PLAIN, _PROMPT, _ALL_LOGITS = "greedy", "prompt", "prompt, logits of each token"
_QWEN: Final = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}
_PENALTIES: Final = {"repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": 0.5}
# Every row, and what its requests ask for.
FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    _PLAIN: {},
    "temperature 1": {"temperature": 1.0},
    "0.7, top_k 20": {"temperature": 0.7, "top_k": 20},
    "0.7, top_k 20, top_p 0.8": _QWEN,
    "1, top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "1, min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    **{f"logprobs {num}": {"logprobs": num} for num in (0, 5, 20)},
    **{f"{name} {value}": {name: value} for name, value in _PENALTIES.items()},
    "logit_bias of 1,024": {"logit_bias": {token: token % 7 - 3.0 for token in range(1024)}},
    "min_tokens": {"min_tokens": _MOST, "stop_token_ids": (5,)},
    "stop, 4 strings": {"stop": ("\n\n\n\n", "</answer>", "Observation:", "\x00\x00\x00")},
    "JSON schema": {"structured_outputs": StructuredOutputs(json=_FORM)},
    "0.7, all of these": {**_QWEN, **_PENALTIES, "min_p": 0.05, "logprobs": 5},
    _PROMPT: {},
    **{f"prompt, prompt_logprobs {num}": {"prompt_logprobs": num} for num in (0, 5)},
    _ALL_LOGITS: {},
}
_COLUMNS: Final = (
    TIME,
    Column("plain_s", "plain ms", ".3f", 1e3),
    Column("ratio", "ratio (min-max)", ".3f", has_spread=True),
    Column("accepted", "drafts accepted", ".0%"),
)
_ABOUT: Final = (
    "All streams ask for the same; steps of a field and of the plain case take turns. Prompt rows are the "
    f"time of all prompts, compared with plain ones; {_ALL_LOGITS!r} is the least for prompt_logprobs."
)


def features(config: BenchConfig, num_drafts: int = 0) -> Section:
    """Times each field at config.streams, which share its context; with `num_drafts` right drafts a step."""
    streams = config.streams
    crowd = Crowd(replace(config, context=max(2, config.context // streams)), streams, num_drafts)
    fields = [name for name in FIELDS if not (num_drafts and name.startswith(_PROMPT))]
    rows = [Row(name, crowd.measure(name)) for name in fields]
    what = f"a decode step{f' that verifies {num_drafts} drafts' if num_drafts else ''}"
    title = f"features: {what}, {streams} streams, {config.context} tokens of context in all streams"
    name = f"features-drafts-{num_drafts}" if num_drafts else "features"
    return Section(name, title, _COLUMNS, rows, notes=[_ABOUT])


class Crowd(Proposer):
    """So many streams that ask for the same; as a `Proposer` it drafts what they answered without drafts."""

    def __init__(self, config: BenchConfig, streams: int, num_drafts: int) -> None:
        """config.context is that of each stream."""
        self._config, self._streams, self._num_drafts = config, streams, num_drafts
        self._num_tokens = 2 + (config.rounds + _WARM_UPS) * (num_drafts + 1) + num_drafts
        config.require_room(config.context + self._num_tokens, "--context and --rounds")
        vocab_size, asked = config.model.config.vocab_size, at_once(streams, config.context, 1)
        self._prompts: Any = [prompt.content for prompt in prompts_of(asked, vocab_size, config.seed)]
        self._grammars = Grammars(config.checkpoint.tokenizer, vocab_size)
        self._answers: dict[str, list[int]] = {}  # by the name of a request

    def measure(self, name: str) -> Mapping[str, Sequence[float | None]]:
        """A row's samples: its steps and plain ones in turns, and the share of its drafts that was right."""
        plain = _PROMPT if name.startswith(_PROMPT) else _PLAIN
        with ExitStack() as stack:
            engines = {side: self._engine(side, stack) for side in dict.fromkeys((plain, name))}
            runs = [Variant(side, partial(self._run, side, engine)) for side, engine in engines.items()]
            seconds = time_variants(runs, self._config.rounds, warm_ups=_WARM_UPS)
            stats = engines[name].core.spec_stats
        ratios = [a / b for a, b in zip(seconds[name], seconds[plain], strict=True)]
        accepted = [stats.num_accepted_tokens / stats.num_draft_tokens] if stats else []
        found = (seconds[name], seconds[plain], ratios, accepted)
        return dict(zip((column.key for column in _COLUMNS), found, strict=True))

    def look_up(self, token_ids: Sequence[int], request_id: str | None = None) -> Draft:
        """As `Proposer`."""
        known, place = self._answers.get(request_id or "", []), len(token_ids) - self._config.context
        return Draft(tuple(known[place : place + self._num_drafts]))

    def _engine(self, name: str, stack: ExitStack, drafts: bool = True) -> Any:
        """An engine with its requests, or, for prompts, without any."""
        length = self._config.context + self._num_tokens
        num_blocks = -(-length // BLOCK_SIZE)
        scheduler = SchedulerConfig(self._streams * length, self._streams, length)
        proposer = self if drafts and self._num_drafts else None
        options = EngineOptions(self._streams * num_blocks, BLOCK_SIZE, None, False, proposer=proposer)
        model, tokenizer = self._config.model, self._config.checkpoint.tokenizer
        engine = self._config.llm.Engine(model, tokenizer, scheduler, options)
        stack.callback(engine.release)
        if proposer and f"{name} 0" not in self._answers:
            with ExitStack() as own:
                truth = self._engine(name, own, drafts=False)
                for _ in range(self._num_tokens):
                    for each in truth.step():
                        self._answers.setdefault(each.request_id, []).extend(each.token_ids)
        if not name.startswith(_PROMPT):
            self._add(engine, name, _MOST)
        return engine

    def _run(self, name: str, engine: Any) -> object:
        if name == _ALL_LOGITS:
            return self._all_logits(engine.core.kv_cache)
        if name.startswith(_PROMPT):
            self._add(engine, name, 1)
        return engine.step()

    def _all_logits(self, cache: PagedCache) -> list[mx.array]:
        """The tokens after each token of the prompts, and the pools."""
        length, count = self._config.context, -(-self._config.context // BLOCK_SIZE)
        slices = [Slice(range(i * count, (i + 1) * count), 0, length) for i in range(self._streams)]
        layout = self._config.llm.StepLayout.of(BLOCK_SIZE, slices)
        tokens, wanted = mx.array(self._prompts).reshape(-1, 1), Wanted(rows=range(self._streams * length))
        layers = cache.begin_step(layout)
        logits = self._config.model(tokens, layout.positions, layers, wanted=wanted)[:, -1]
        return [mx.argmax(logits, axis=-1), *cache.pools]

    def _add(self, engine: Any, name: str, max_tokens: int) -> None:
        for number, prompt in enumerate(self._prompts):
            fields = {"max_tokens": max_tokens, "ignore_eos": True, "seed": number, **FIELDS[name]}
            sampling = SamplingParams(**fields)
            processors = processors_for(sampling, self._grammars)
            engine.add(f"{name} {number}", prompt, sampling, processors=processors)

"""`features`: what a field of a request adds to a step, compared with greedy decoding."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.measure.bench.engine.config import BLOCK_SIZE, BenchConfig
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.structured.grammars import Grammars, processors_for
from tiny_llm_lab.types import (
    Clock,
    Draft,
    EngineOptions,
    SamplingParams,
    SchedulerConfig,
    StructuredOutputs,
    Wanted,
)
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.scheduling.draft import DraftSampler

Fields = Mapping[str, Any]  # of `SamplingParams`
_STEPS: Final = 5  # in one turn
_FEWEST: Final = 2 * BLOCK_SIZE  # tokens of a context, of which the first block is in the prefix cache
_PLAIN, _PROMPT, _ALL_LOGITS = "greedy", "prompt", "prompt, logits of each token"
_FORM: Final = {"type": "array", "items": {"type": "string"}, "minItems": 999}  # never ends
_ABOUT: Final = (
    "A field and the plain case take turns, and a ratio is of two turns next to each other. All streams ask "
    "for the same. Prompt rows are the time of a prompt of {} tokens in all, compared with a plain one; "
    f"{_ALL_LOGITS!r} is the least that prompt_logprobs can take."
)


def features(config: BenchConfig, num_drafts: int = 0, clock: Clock = time.perf_counter) -> Section:
    """Times each field at 1, N and 8 N streams; with `num_drafts` a step verifies so many right drafts."""
    columns, samples = list[Column](), dict[str, dict[str, list[float | None]]]()
    for streams in sorted({1, config.streams, 8 * config.streams}):
        crowd = Streams(config, streams, num_drafts, clock)
        keys = [f"{key}_{streams}" for key in ("step_s", "plain_s", "ratio", "tokens_per_step")]
        titles = (f"{streams} × ms", "plain ms", "ratio (min-max)", "tokens/step")
        shown = zip(keys, titles, (".2f", ".2f", ".3f", ".2f"), (1e3, 1e3, 1.0, 1.0), strict=True)
        columns += [Column(*each, has_spread=each[0] == keys[2]) for each in shown][: 4 if num_drafts else 3]
        for name in crowd.names:
            plain = _PROMPT if name.startswith(_PROMPT) else _PLAIN
            own = samples.setdefault(name, {}) | {key: [] for key in keys}
            times: dict[str, list[float | None]] = {name: [], plain: []}
            for turn, side in interleave(list(times), config.rounds, warm_ups=1):
                step_s, tokens = crowd.serve(side)
                if turn >= 0:
                    times[side].append(step_s)
                    own[keys[3]] += [tokens] if side == name else []
            pairs = list(zip(times[name], times[plain], strict=True))
            own |= {keys[0]: times[name], keys[1]: times[plain]}
            samples[name] = own | {keys[2]: [a / b if a and b else None for a, b in pairs]}
        crowd.engine.release()
    title = "features: a decode step" + (f" that verifies {num_drafts} drafts" if num_drafts else "")
    rows = [Row(name, each) for name, each in samples.items()]
    about = _ABOUT.format(config.context)
    return Section(
        "features", f"{title}, {config.context} tokens of context in all", columns, rows, notes=[about]
    )


def fields_of(num_tokens: int) -> dict[str, Fields]:
    """Every row, and what its requests ask for; answers have `num_tokens` tokens."""
    draws: dict[str, Fields] = {
        _PLAIN: {},
        "temperature 1": {"temperature": 1.0},
        "0.7, top_k 20": {"temperature": 0.7, "top_k": 20},
        "0.7, top_k 20, top_p 0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
        "0.6, top_k 20, top_p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        "1, top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
        "1, min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    }
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": 0.5}
    return draws | {
        **{f"logprobs {num}": {"logprobs": num} for num in (0, 5, 20)},
        **{f"{name} {value}": {name: value} for name, value in penalties.items()},
        "logit_bias of 1,024": {"logit_bias": {token: token % 7 - 3.0 for token in range(1024)}},
        "min_tokens": {"min_tokens": num_tokens, "stop_token_ids": (5,)},
        "stop, 4 strings": {"stop": ("\n\n\n\n", "</answer>", "Observation:", "\x00\x00\x00")},
        "JSON schema": {"structured_outputs": StructuredOutputs(json=_FORM)},
        "0.7, all of these": {**draws["0.7, top_k 20, top_p 0.8"], **penalties, "min_p": 0.05, "logprobs": 5},
        _PROMPT: {},
        **{f"prompt, prompt_logprobs {num}": {"prompt_logprobs": num} for num in (0, 5)},
        _ALL_LOGITS: {},
    }


class Oracle:
    """Drafts what a request of the same id has answered before; all prompts have `context` tokens."""

    def __init__(self, context: int, num_drafts: int) -> None:
        self.answers: dict[str, list[int]] = {}
        self._context, self._num_drafts = context, num_drafts

    def propose(
        self, token_ids: Sequence[int], request_id: str | None = None, sampler: DraftSampler | None = None
    ) -> Draft:
        """As `Proposer`."""
        known, place = self.answers.get(request_id or "", []), len(token_ids) - self._context
        return Draft(tuple(known[place : place + self._num_drafts]))

    def forget(self, request_id: str) -> None:
        """As `Proposer`."""


class Streams:
    """An engine on which so many streams ask for one row's fields, then for another's."""

    def __init__(self, config: BenchConfig, streams: int, num_drafts: int, clock: Clock) -> None:
        """`streams` requests whose contexts have config.context tokens in all, if those are enough."""
        self._config, self._streams, self._clock = config, streams, clock
        self._context, self._num_prompts = max(_FEWEST, config.context // streams), 0
        self._num_tokens = 2 + (_STEPS + 1) * (num_drafts + 1)
        length = -(-(self._context + self._num_tokens) // BLOCK_SIZE) * BLOCK_SIZE
        config.require_room(length, "--context")
        tokenizer, vocab_size = config.checkpoint.tokenizer, config.model.config.vocab_size
        scheduler = SchedulerConfig(
            max_num_batched_tokens=streams * length, max_num_seqs=streams, max_model_len=length
        )
        self._oracle, num_blocks = Oracle(self._context, num_drafts), 2 * streams * length // BLOCK_SIZE
        options = EngineOptions(num_blocks, BLOCK_SIZE, proposer=self._oracle if num_drafts else None)
        self.engine = config.llm.Engine(config.model, tokenizer, scheduler, options)
        self._grammars, self._fields = Grammars(tokenizer, vocab_size), fields_of(self._num_tokens)
        self.names = [name for name in self._fields if not (num_drafts and name.startswith(_PROMPT))]
        self._prompts = config.prompts(streams, self._context)

    def serve(self, name: str) -> tuple[float | None, float | None]:
        """Seconds of a step, the median of a turn, and tokens of a stream in it; None if an answer ended."""
        if name.startswith(_PROMPT):
            return (self._all_logits() if name == _ALL_LOGITS else self._prompt(name)), None
        self._add(name, self._prompts, self._num_tokens)
        outputs, seconds, num_tokens = self.engine.step(), list[float](), 0
        answers: dict[str, list[int]] = {each.request_id: list(each.token_ids) for each in outputs}
        is_first = not answers.keys() <= self._oracle.answers.keys()
        while self.engine.has_requests and (len(seconds) < _STEPS or is_first):
            start_s = self._clock()
            outputs = self.engine.step()
            seconds.append(self._clock() - start_s)
            num_tokens += sum(len(each.token_ids) for each in outputs)
            for each in outputs:
                answers[each.request_id] += each.token_ids
        is_whole = len(seconds) >= _STEPS and len(outputs) == self._streams
        for request_id in answers:
            self.engine.abort(request_id)
        if is_first:
            self._oracle.answers |= answers
        return (median(seconds), num_tokens / len(seconds) / self._streams) if is_whole else (None, None)

    def _prompt(self, name: str) -> float:
        """Seconds of a step that computes prompts which no step has seen."""
        self._num_prompts += 1
        fresh = replace(self._config, seed=self._config.seed + self._num_prompts)
        self._add(name, fresh.prompts(self._streams, self._prompt_len), 1)
        start_s = self._clock()
        self.engine.step()
        return self._clock() - start_s

    def _all_logits(self) -> float:
        """Seconds of the same work, and a logit of each token for each entry of the vocabulary."""
        model, length, count = self._config.model, self._prompt_len, -(-self._prompt_len // BLOCK_SIZE)
        slices = [Slice(range(i * count, (i + 1) * count), 0, length) for i in range(self._streams)]
        tokens = mx.array(self._config.prompts(self._streams, length)).reshape(-1, 1)
        cache = model.create_paged_kv_cache(self._streams * count, BLOCK_SIZE)
        start_s = self._clock()
        layout = self._config.llm.StepLayout.of(BLOCK_SIZE, slices)
        wanted = Wanted(rows=range(len(tokens)))
        logits = model(tokens, layout.positions, cache.begin_step(layout), wanted=wanted)[:, -1]
        mx.eval(mx.argmax(logits, axis=-1), cache.pools)
        took_s = self._clock() - start_s
        cache.release()
        return took_s

    @property
    def _prompt_len(self) -> int:
        return max(2, self._config.context // self._streams)

    def _add(self, name: str, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        for number, prompt in enumerate(prompts):
            sampling = SamplingParams(
                max_tokens=num_tokens, ignore_eos=True, seed=number, **self._fields[name]
            )
            processors = processors_for(sampling, self._grammars)
            self.engine.add(f"{name} {number}", prompt, sampling, processors=processors)

"""Watches the prompts of an engine's requests: those before, for comparison, and those being computed."""

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.serving.async_engine.listener import EngineListener
from tiny_llm_lab.serving.async_engine.messages import EngineFacts, NewRequest, Queues, StepReport
from tiny_llm_lab.serving.server.prompts.reuse import Reuse, Tokens, compare, num_common
from tiny_llm_lab.types import EngineOutput
from tiny_llm_lab.types.computing.pictures import PictureConfig
from tiny_llm_lab.types.scheduling.step_time import attention_tokens

_LOG: Final = logging.getLogger("tiny_llm.server")
# Remembered: 4 MB, which take a millisecond to look through. A short prompt counts as if it had 4,096 tokens.
_MOST_TOKENS, _COUNTED = 2**20, 2**12
_LEAST, _LOGGED = 64, 1024  # computed tokens of a prompt for which we say why, and for which the log does too
_NUM_STEPS, _FEWEST_STEPS = 64, 8  # from which we tell how long a prompt will take
_NOTHING: Final = np.array([], np.int32)


# Why a prompt was computed: the id of its request, its client, what of it was reused.
Explain = Callable[[str, str, Reuse], None]


@dataclass(eq=False)
class WatchedPrompt:
    """A prompt, from before it is queued."""

    tokens: Tokens
    owner: tuple[str, str]  # key and salt: prompts of the same are compared
    client: str  # the program, for metrics
    tokenizer: CheckpointTokenizer
    before: Tokens  # the earlier prompt that it is most like, and
    before_id: str  # the id of its request
    look_ahead: Callable[[], None]  # sets `seconds_left`
    remember: Callable[["WatchedPrompt", Tokens], None]  # that these of its tokens are computed
    num_cached: int = 0
    num_done: int = 0  # cached or computed
    start_s: float = 0.0  # of its first step
    end_s: float = 0.0  # of its last step so far
    is_read: bool = False
    seconds_left: float | None = None
    reuse: Reuse | None = None  # once all is computed, if that was much

    def progress(self) -> dict[str, Any]:
        """llama.cpp's `prompt_progress`, and the seconds left once they can be told."""
        if not self.is_read:
            self.look_ahead()
        told = {"total": len(self.tokens), "cache": self.num_cached, "processed": self.num_done}
        left = {} if self.seconds_left is None else {"seconds_left": round(self.seconds_left, 1)}
        return {**told, "time_ms": round(1000 * (self.end_s - self.start_s)), **left}

    def close(self) -> None:
        """Nobody waits for its answer any more."""
        if not self.is_read and self.num_done:
            self.remember(self, self.tokens[: self.num_done])

    def __str__(self) -> str:
        """How far it is, in one line."""
        self.look_ahead()
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        return f"prompt: {self.num_done:,} of {len(self.tokens):,} tokens, {self.num_cached:,} cached{left}"


def tokens_of(request: NewRequest, config: PictureConfig | None) -> Tokens:
    """The tokens of a prompt; those of pictures are numbers below 0, which other pictures don't have."""
    tokens = np.array(request.prompt, np.int32)
    if config is not None and request.pictures:
        firsts = [int.from_bytes(each.digest[:4]) for each in request.pictures]
        counts = [each.num_tokens(config) for each in request.pictures]
        rows = [-1 - (first + np.arange(count)) % 2**31 for first, count in zip(firsts, counts, strict=True)]
        tokens[tokens == config.token_id] = np.concatenate(rows)
    return tokens


class PromptWatch(EngineListener):
    """Remembers the last prompts with their answers, and follows those that are being computed."""

    def __init__(self, *explain: Explain) -> None:
        """`explain` are told of prompts of which at least `_LEAST` tokens were computed."""
        self._explain, self._size, self._has_states = explain, 1, False
        self._pictures: PictureConfig | None = None
        # Of steps with prompt tokens: how many, the tokens that these attend to, seconds.
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=_NUM_STEPS)
        self._before: dict[str, tuple[tuple[str, str], Tokens]] = {}  # by request, the newest last
        # In the order of arrival. Whoever waits for the answer holds them.
        self._live: WeakValueDictionary[str, WatchedPrompt] = WeakValueDictionary()

    def expect(
        self, request: NewRequest, headers: Mapping[str, str], tokenizer: CheckpointTokenizer
    ) -> WatchedPrompt:
        """The prompt of a request that will be added now, to be held until its answer ends."""
        owner = headers.get("x-api-key", headers.get("authorization", "")), request.sampling.cache_salt
        program = re.match(r"[\w.-]{1,32}", headers.get("user-agent", ""), re.ASCII)
        tokens = tokens_of(request, self._pictures)
        own = {name: each for name, (who, each) in self._before.items() if who == owner}
        alike = [(num_common(each, tokens), len(each), name) for name, each in own.items()]
        name = max(alike, default=(0, 0, ""))[2]
        before, client = own.get(name, _NOTHING), program[0] if program else "other"
        remember = partial(self._remember, request.request_id)
        prompt = WatchedPrompt(tokens, owner, client, tokenizer, before, name, self._look_ahead, remember)
        self._live[request.request_id] = prompt
        return prompt

    def started(self, facts: EngineFacts) -> None:
        self._size, self._has_states = facts.block_size, facts.num_states > 0
        self._pictures = facts.model.pictures

    def stepped(self, report: StepReport) -> None:
        stats, new = report.stats, report.plan.num_scheduled_tokens
        attention = 0
        for name, num_blocks, num_cached in report.held:
            prompt = self._live.get(name)
            if prompt is None or prompt.is_read:
                continue
            prompt.num_cached = num_cached
            prompt.num_done = min(len(prompt.tokens), num_blocks * self._size)
            prompt.start_s, prompt.end_s = prompt.start_s or stats.start_s, stats.end_s
            attention += attention_tokens(max(0, prompt.num_done - new.get(name, 0)), new.get(name, 0))
        if stats.num_prompt_tokens:
            self._steps.append((stats.num_prompt_tokens, attention, stats.end_s - stats.start_s))

    def _look_ahead(self) -> None:
        """Set the seconds left of all prompts, each behind those that came before it."""
        if len(self._steps) < _FEWEST_STEPS:
            return
        steps = np.array(self._steps)
        costs = np.maximum(0, np.linalg.lstsq(steps[:, :2], steps[:, 2], rcond=None)[0])
        costs *= steps[:, 2].sum() / (steps[:, :2] @ costs).sum()
        work = np.zeros(2)
        for prompt in list(self._live.values()):
            if not prompt.is_read:
                left = len(prompt.tokens) - prompt.num_done
                work += left, attention_tokens(prompt.num_done, left)
                prompt.seconds_left = float(costs @ work)

    def produced(self, outputs: Sequence[EngineOutput]) -> None:
        for output in outputs:
            name, done = output.request_id, output.completion
            if (prompt := self._live.get(name)) is not None and not prompt.is_read:
                self._read(name, prompt, output.num_cached_tokens)
            if prompt is not None and done is not None:
                self._remember(name, prompt, np.append(prompt.tokens, np.array(done.token_ids, np.int32)))

    def _read(self, request_id: str, prompt: WatchedPrompt, num_cached: int) -> None:
        prompt.is_read, prompt.seconds_left = True, None
        prompt.num_done, prompt.num_cached = len(prompt.tokens), num_cached
        if prompt.num_done - num_cached >= _LEAST:
            rows = prompt.tokens, num_cached, prompt.before
            prompt.reuse = reuse = compare(*rows, self._size, prompt.tokenizer, self._has_states)
            if reuse.num_computed >= _LOGGED:
                _LOG.info("%s: %s", request_id, reuse.says)
            for explain in self._explain:
                explain(request_id, prompt.client, reuse)
        self._remember(request_id, prompt, prompt.tokens)

    def _remember(self, request_id: str, prompt: WatchedPrompt, tokens: Tokens) -> None:
        """Keep what was computed, in place of its own beginning."""
        if num_common(prompt.before, tokens) == len(prompt.before):
            self._before.pop(prompt.before_id, None)
        self._before[request_id] = prompt.owner, tokens
        while sum(max(len(each), _COUNTED) for _, each in self._before.values()) > _MOST_TOKENS:
            del self._before[next(iter(self._before))]

    def aborted(self, request_id: str, queues: Queues) -> None:
        self._live.pop(request_id, None)

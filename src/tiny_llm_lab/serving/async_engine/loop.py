"""Steps an engine: commands go in between steps, events come out after each."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.runtime.models.config.fields import one_line
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.runtime.structured.thoughts import answer_processors
from tiny_llm_lab.serving.async_engine import messages
from tiny_llm_lab.serving.async_engine.reports import Reports, facts_of
from tiny_llm_lab.serving.async_engine.wire import Inbox, portable
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.memory_plan import Planned
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.types import OnStep, StepPlan, StepStats, StructuredOutputs, UserError

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine


@dataclass(frozen=True)
class BuiltEngine:
    """An engine, and what belongs to its model."""

    engine: AnyEngine
    facts: messages.EngineFacts
    forms: Grammars
    keeper: MemoryKeeper
    tokenizer: CheckpointTokenizer


def built_from(settings: ModelSettings, on_step: OnStep) -> BuiltEngine:
    """Load and build, on the thread that will step the engine, as MLX binds arrays to it.

    Raises UserError for a model or settings that cannot be served.
    """
    keeper = MemoryKeeper()
    loaded, engine = load_and_build(settings, on_step, keeper=keeper)
    checkpoint, config = loaded.checkpoint, loaded.model.config
    if not isinstance(checkpoint.tokenizer, CheckpointTokenizer):
        raise UserError(f"a server can't use the tokenizer of {settings.model}: choose another model")
    planned = Planned(config, checkpoint.dtype, settings.engine)
    facts = facts_of(engine, config, planned.block_bytes, checkpoint.path)
    kernels = "off" if loaded.model.ops is None else loaded.model.ops.name
    facts = replace(facts, activation_bits=loaded.activation_bits, kernels=kernels)
    forms = Grammars(checkpoint.tokenizer, config.vocab_size, settings.engine.form_timeout_s)
    forms.prepare()  # streams would wait for it later: 1.2 s for 150,000 tokens
    return BuiltEngine(engine, facts, forms, keeper, checkpoint.tokenizer)


Compiled = dict[StructuredOutputs, GrammarProcessor]
_MOST_TRIED: Final = 32  # at a time; their threads only wait
_SLOW_S: Final = 0.05  # CPU time of a form that others don't wait for


@dataclass
class _Pending:
    """Requests that wait for their forms."""

    add: messages.Add
    forms: Collection[StructuredOutputs]
    left: Future[None] = field(default_factory=Future)  # done when all of their clients have left
    compiled: Future[Compiled] = field(default_factory=Future)


class FormQueue:
    """The requests that wait, by the number of their command. All ranks see the same ones between steps."""

    def __init__(self, forms: Grammars, inbox: Inbox) -> None:
        """`inbox` gets `FormsTried` and `FormsReady`; that of another rank than the first drops them."""
        self._forms, self._inbox = forms, inbox
        self._pending: dict[int, _Pending] = {}
        self._trying = ThreadPoolExecutor(_MOST_TRIED, "forms")
        self._fast, self._slow = ThreadPoolExecutor(1, "fast-forms"), ThreadPoolExecutor(2, "slow-forms")

    def put(self, add: messages.Add) -> bool:
        """Begin with the forms of `add`; False if there are none."""
        asked = {each.sampling.structured_outputs for each in add.requests}
        forms = [form for form in asked if form is not None]
        if not forms:
            return False
        pending = self._pending[add.number] = _Pending(add, forms)
        if self._inbox.leads:
            self._trying.submit(self._try, pending)
        return True

    def tried(self, verdict: messages.FormsTried) -> None:
        """Compile forms that have passed."""
        pending = self._pending[verdict.number]
        if verdict.error is not None:
            pending.compiled.set_exception(verdict.error)
            self._inbox.put(messages.FormsReady(verdict.number))
            return
        executor = self._slow if verdict.cpu_s > _SLOW_S else self._fast
        pending.compiled = executor.submit(self._compile, pending)
        pending.compiled.add_done_callback(lambda _: self._inbox.put(messages.FormsReady(verdict.number)))

    def take(self, number: int) -> tuple[messages.Add, Callable[[], Compiled]]:
        """Requests that wait no longer, without those that have left, and their forms, which may raise."""
        pending = self._pending.pop(number)
        return pending.add, pending.compiled.result

    def leave(self, names: Collection[str]) -> None:
        """Forget the requests called `names`."""
        for pending in self._pending.values():
            left = tuple(each for each in pending.add.requests if each.request_id not in names)
            pending.add = replace(pending.add, requests=left)
            if not left and not pending.left.done():
                pending.left.set_result(None)

    def close(self) -> None:
        """End what is tried."""
        for pending in self._pending.values():
            if not pending.left.done():
                pending.left.set_result(None)
        for executor in (self._trying, self._fast, self._slow):
            executor.shutdown(wait=False, cancel_futures=True)

    def _try(self, pending: _Pending) -> None:
        number = pending.add.number
        try:
            cpu_s = sum(self._forms.require(each, pending.left) for each in pending.forms)
        except Exception as error:
            self._inbox.put(messages.FormsTried(number, error=portable(error)))
        else:
            self._inbox.put(messages.FormsTried(number, cpu_s))

    def _compile(self, pending: _Pending) -> Compiled:
        return {form: self._forms.compile(form) for form in pending.forms}


_LOG: Final = logging.getLogger("tiny_llm.engine")
Build = Callable[[OnStep], BuiltEngine]
Send = Callable[[Sequence[messages.EngineEvent]], None]
# A small model's step is shorter than this, and a write for each token of each stream would take longer
# than the step. So the tokens of such steps go out together; first ones and those of slower steps at once.
INTERVAL_S: Final = 0.002
_SIGN_S: Final = 1.0  # without a step, after which we say that the engine works
DEVICE_LOST: Final = 3  # exit status of a process that another one must replace
# What MLX says then. After a fault or a time-out macOS ignores all later work of a process; CUDA refuses it.
_LOST: Final = (
    *("[METAL]", "kIOGPU", "SubmissionsIgnored", "[cuda]", "illegal memory access", "misaligned address"),
    *("unspecified launch failure", "launch timed out"),
)
MOST_FAILED: Final = 3  # steps in a row, before a process that can be replaced ends

_LOST_S: Final = 60  # after which a client may ask again


def is_lost(error: BaseException) -> bool:
    """Whether the device will refuse whatever else this process asks of it."""
    return any(text in str(error) for text in _LOST)


class EngineLoop:
    """Steps an engine while it has requests, and sleeps otherwise."""

    def __init__(self, build: Build, send: Send, inbox: Inbox, most_failed: float = math.inf) -> None:
        """`build` is called by `run`, with the `on_step` of the engine; so is `send`, with what happened.

        After `most_failed` steps in a row that fail, `run` ends as if the device had failed.
        """
        self._build, self._send, self._inbox = build, send, inbox
        self._most_failed, self._num_failed = most_failed, 0
        self._live: set[str] = set()  # requests in the engine
        self._held: list[messages.EngineEvent] = []  # events that are not sent yet
        self._sent_s = 0.0
        self._is_next_soon = False  # whether held events may wait for the next step
        self._note = ""
        self._is_stopping = False

    def run(self) -> int:
        """Build the engine and step it until `Stop`. The first event is `Ready` or `Refused`.

        Returns the exit status of a process that ends with it: `DEVICE_LOST`, or 0.
        """
        try:
            self._built = self._build(self._on_step)
        except BaseException as error:
            self._tell([messages.Refused(0, error)])
            return 0
        engine = self._engine = self._built.engine
        self._reports = Reports(engine)
        self._forms = FormQueue(self._built.forms, self._inbox)
        self._tell([messages.Ready(self._built.facts)])
        try:
            while not self._is_stopping:
                self._run_commands()
                if engine.has_requests and not self._is_stopping:
                    self._step()
        except BaseException as error:  # nothing above would report it
            _LOG.critical("the engine has died", exc_info=True)
            if is_lost(error):
                error = messages.DeviceLostError(f"the device has failed: {one_line(error)}", _LOST_S)
            if isinstance(error, messages.DeviceLostError):
                self._leave(error)
                return DEVICE_LOST
        finally:
            self._leave(messages.EngineStoppedError("the engine has stopped"))
            self._forms.close()
            engine.release()
        return 0

    def _run_commands(self) -> None:
        is_idle, timeout_s = not self._engine.has_requests, None
        if is_idle:
            timeout_s = self._built.keeper.idle()
            self._say_memory()
        for command in self._inbox.take(is_idle, timeout_s):
            self._apply(command)

    def _apply(self, command: messages.Command) -> None:
        match command:
            case messages.Add():
                self._add(command)
            case messages.FormsTried():
                self._forms.tried(command)
            case messages.FormsReady(number):
                self._add_compiled(*self._forms.take(number))
            case messages.Abort(names):
                self._abort(names)
            case messages.Reconfigure():
                self._reconfigure(command)
            case messages.Stop():
                self._is_stopping = True

    def _add(self, add: messages.Add) -> None:
        """Add requests, those with forms once these are compiled beside the steps."""
        if not self._forms.put(add):
            self._add_compiled(add, dict)

    def _add_compiled(self, add: messages.Add, compiled: Callable[[], Compiled]) -> None:
        added = []
        try:
            forms = compiled()
            for each in add.requests:
                self._add_one(each, forms)
                added.append(each.request_id)
        except Exception as error:
            for name in added:
                self._engine.abort(name)
            self._tell([messages.Refused(add.number, error)])
            return
        self._live.update(added)
        self._tell([messages.Added(add.number, self._reports.queues(), tuple(added))])

    def _abort(self, names: Sequence[str]) -> None:
        self._forms.leave(names)
        ended = tuple(name for name in names if self._engine.abort(name))
        if ended:
            self._live.difference_update(ended)
            self._tell([messages.Left(ended, self._reports.queues())])

    def _add_one(self, request: messages.NewRequest, compiled: Compiled) -> None:
        asked = request.sampling.structured_outputs
        form = None if asked is None else compiled[asked].copy()
        self._engine.add(
            request.request_id,
            request.prompt,
            request.sampling,
            priority=request.priority,
            priority_class=request.priority_class,
            arrival_s=request.arrival_s,
            processors=answer_processors(request.sampling, request.prompt, self._built.tokenizer, form),
            pictures=self._engine.core.options.prefix_disk.with_pictures(request.prompt, request.pictures),
        )

    def _reconfigure(self, command: messages.Reconfigure) -> None:
        core = self._engine.core
        try:
            config = replace(
                core.config,
                enable_chunked_prefill=command.enable_chunked_prefill,
                max_num_batched_tokens=command.max_num_batched_tokens,
            )
            core.reconfigure(config)
        except Exception as error:
            self._tell([messages.Refused(command.number, error)])
        else:
            self._tell([messages.Configured(command.number, config)])

    def _step(self) -> None:
        self._is_next_soon = False
        try:
            outputs = self._engine.step()
        except Exception as error:  # the engine has dropped its requests, and can take others
            if self._inbox.is_shared or is_lost(error):
                raise  # maybe on this rank alone, or for ever
            _LOG.exception("a step failed and %d requests are lost", len(self._live))
            self._leave(error)
            self._num_failed += 1
            if self._num_failed >= self._most_failed:
                text = f"{self._num_failed} steps in a row have failed, the last with {one_line(error)}"
                raise messages.DeviceLostError(text, _LOST_S) from error
            return
        self._num_failed = 0
        self._live.difference_update(each.request_id for each in outputs if each.completion is not None)
        if outputs:
            self._held.append(messages.Produced(outputs))
        if not self._is_next_soon:
            is_silent = not self._held and time.perf_counter() - self._sent_s > _SIGN_S
            self._tell([messages.Working()] if is_silent else [])
        self._say_memory()

    def _leave(self, error: BaseException) -> None:
        lost, self._live = tuple(sorted(self._live)), set()
        self._tell([messages.Left(lost, self._reports.queues(), error)])

    def _say_memory(self) -> None:
        if (note := self._built.keeper.says or "") != self._note:
            self._note = note
            self._tell([messages.MemoryNote(note)])

    def _on_step(self, plan: StepPlan, stats: StepStats) -> None:
        self._held.append(messages.Stepped(self._reports.step(plan, stats)))
        is_short = stats.end_s - stats.start_s < INTERVAL_S and stats.end_s - self._sent_s < INTERVAL_S
        is_alike = stats.num_running > 0 and not (stats.num_waiting or stats.num_prompt_tokens)
        self._is_next_soon = is_short and is_alike

    def _tell(self, events: Sequence[messages.EngineEvent]) -> None:
        held, self._held = [*self._held, *events], []
        if held:
            self._sent_s = time.perf_counter()
            self._send(held)

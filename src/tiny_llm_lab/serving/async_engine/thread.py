"""An engine on a thread of its own: commands go in between steps, outputs come out after each."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from operator import methodcaller
from typing import Any, Final, Protocol, TypeVar

from tiny_llm_lab.serving.async_engine.listener import AddedRequest, EngineListener
from tiny_llm_lab.types import EngineOutput, OnStep, StepPlan, StepStats
from tiny_llm_lab.types.scheduling.serving import Engine

_LOG: Final = logging.getLogger("tiny_llm.engine")
T = TypeVar("T")


class OutputSink(Protocol):
    """Where outputs go; called on the engine's thread."""

    def deliver(self, outputs: Sequence[EngineOutput]) -> None: ...

    def fail(self, request_ids: Sequence[str], error: BaseException) -> None:
        """These requests left the engine before their end."""


class EngineStoppedError(RuntimeError):
    """The engine takes no more requests, or lost this one when it stopped."""


class EngineThread:
    """Steps an engine while it has requests, and sleeps otherwise."""

    def __init__(
        self,
        make_engine: Callable[[OnStep], Engine],
        sink: OutputSink,
        listeners: Sequence[EngineListener] = (),
        idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`make_engine` is called on the thread, as MLX binds arrays under way to the thread that made them.

        It gets the `on_step` of the engine. `idle` is called whenever the engine has no requests; it returns
        after how many seconds it wants to be called again, None for not before the next request has ended.
        Call `start` to begin.
        """
        self._make_engine, self._sink, self._listeners = make_engine, sink, tuple(listeners)
        self._idle = idle
        self._commands: queue.SimpleQueue[tuple[Callable[[Engine], None], Future[Any]]] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._live: set[str] = set()  # requests in the engine
        self._is_stopping = False
        self._is_over = False  # no more commands are run
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._ready: Future[None] = Future()

    def start(self) -> "Future[None]":
        """Begin; the future is done when the engine is built, or has the error of building it."""
        self._thread.start()
        return self._ready

    @property
    def is_alive(self) -> bool:
        """Whether steps are computed: false before `start` and after `stop` or a crash."""
        return self._thread.is_alive() and not self._is_over

    def submit(self, command: Callable[[Engine], T]) -> "Future[T]":
        """Run `command` on the engine's thread, before its next step.

        The future gets EngineStoppedError when the thread has ended.
        """
        result: Future[T] = Future()

        def run(engine: Engine) -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(command(engine))
            except BaseException as error:  # the caller gets it
                result.set_exception(error)

        self._commands.put((run, result))
        if self._is_over:  # maybe before `put`, so nobody runs it
            self._refuse_commands()
        return result

    def added(self, request: AddedRequest) -> None:
        """Call this from a command that has added a request."""
        self._live.add(request.request_id)
        self._tell(lambda listener: listener.added(request))

    def started(self, engine: Engine) -> None:
        """Call this from a command when the engine is ready, or has another configuration."""
        self._tell(lambda listener: listener.started(engine, engine.core.config))

    def abort(self, request_id: str) -> "Future[bool]":
        """Drop a request before the next step; False when it has ended."""

        def command(engine: Engine) -> bool:
            if not engine.abort(request_id):
                return False
            self._live.discard(request_id)
            self._tell(methodcaller("aborted", request_id))
            return True

        return self.submit(command)

    def stop(self) -> None:
        """Compute no further step, and wait until the engine's memory is given back."""

        def command(engine: Engine) -> None:
            self._is_stopping = True

        self.submit(command)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            engine = self._engine = self._make_engine(self._on_step)
        except BaseException as error:
            self._is_over = True
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        try:
            while not self._is_stopping:
                self._run_commands(engine)
                if engine.has_requests and not self._is_stopping:
                    self._step(engine)
        except BaseException:  # nothing above would report it
            _LOG.critical("the engine has died", exc_info=True)
        finally:
            self._is_over = True
            self._fail_live(EngineStoppedError("the engine has stopped"))
            self._refuse_commands()
            engine.release()

    def _refuse_commands(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                _, result = self._commands.get_nowait()
                if result.set_running_or_notify_cancel():
                    result.set_exception(EngineStoppedError("the engine has stopped"))

    def _run_commands(self, engine: Engine) -> None:
        """All commands in the queue; waits for one if there are no requests."""
        try:
            if not engine.has_requests:
                self._commands.get(timeout=self._idle())[0](engine)
            while True:
                self._commands.get_nowait()[0](engine)
        except queue.Empty:
            return

    def _step(self, engine: Engine) -> None:
        try:
            outputs = engine.step()
        except Exception as error:  # the engine has dropped its requests, and can take others
            _LOG.exception("a step failed and %d requests are lost", len(self._live))
            self._fail_live(error)
            return
        self._live.difference_update(each.request_id for each in outputs if each.completion is not None)
        if outputs:
            self._sink.deliver(outputs)
            self._tell(lambda listener: listener.produced(outputs))

    def _fail_live(self, error: BaseException) -> None:
        lost, self._live = sorted(self._live), set()
        self._sink.fail(lost, error)
        for request_id in lost:
            self._tell(methodcaller("failed", request_id))

    def _on_step(self, plan: StepPlan, stats: StepStats) -> None:
        engine = self._engine
        if engine is not None:
            self._tell(lambda listener: listener.stepped(engine, plan, stats))

    def _tell(self, tell: Callable[[EngineListener], None]) -> None:
        for listener in self._listeners:
            try:
                tell(listener)
            except Exception:  # a failing metric must not end a request
                _LOG.exception("%s failed", type(listener).__name__)

"""Requests whose forms are not compiled yet: tried first, then compiled, both beside the engine's steps."""

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor
from tiny_llm_lab.serving.async_engine.built import Forms
from tiny_llm_lab.serving.async_engine.inbox import Inbox
from tiny_llm_lab.serving.async_engine.messages import Add, FormsReady, FormsTried
from tiny_llm_lab.serving.async_engine.wire import portable
from tiny_llm_lab.types import StructuredOutputs

Compiled = dict[StructuredOutputs, GrammarProcessor]
_MOST_TRIED: Final = 32  # at a time; their threads only wait
_SLOW_S: Final = 0.05  # CPU time of a form that others don't wait for


@dataclass
class _Pending:
    """Requests that wait for their forms."""

    add: Add
    forms: Collection[StructuredOutputs]
    left: Future[None] = field(default_factory=Future)  # done when all of their clients have left
    compiled: Future[Compiled] = field(default_factory=Future)


class FormQueue:
    """The requests that wait, by the number of their command. All ranks see the same ones between steps."""

    def __init__(self, forms: Forms, inbox: Inbox) -> None:
        """`inbox` gets `FormsTried` and `FormsReady`; that of another rank than the first drops them."""
        self._forms, self._inbox = forms, inbox
        self._pending: dict[int, _Pending] = {}
        self._trying = ThreadPoolExecutor(_MOST_TRIED, "forms")
        self._fast, self._slow = ThreadPoolExecutor(1, "fast-forms"), ThreadPoolExecutor(2, "slow-forms")

    def put(self, add: Add) -> bool:
        """Begin with the forms of `add`; False if there are none."""
        asked = {each.sampling.structured_outputs for each in add.requests}
        forms = [form for form in asked if form is not None]
        if not forms:
            return False
        pending = self._pending[add.number] = _Pending(add, forms)
        if self._inbox.leads:
            self._trying.submit(self._try, pending)
        return True

    def tried(self, verdict: FormsTried) -> None:
        """Compile forms that have passed."""
        pending = self._pending[verdict.number]
        if verdict.error is not None:
            pending.compiled.set_exception(verdict.error)
            self._inbox.put(FormsReady(verdict.number))
            return
        executor = self._slow if verdict.cpu_s > _SLOW_S else self._fast
        pending.compiled = executor.submit(self._compile, pending)
        pending.compiled.add_done_callback(lambda _: self._inbox.put(FormsReady(verdict.number)))

    def take(self, number: int) -> tuple[Add, Callable[[], Compiled]]:
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
            self._inbox.put(FormsTried(number, error=portable(error)))
        else:
            self._inbox.put(FormsTried(number, cpu_s))

    def _compile(self, pending: _Pending) -> Compiled:
        return {form: self._forms.compile(form) for form in pending.forms}

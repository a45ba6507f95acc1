"""An engine that a test steps, with metrics that are told what the server's thread would tell them."""

from typing import Any

from tests.helpers.fakes import FakeClock
from tests.helpers.fragile import Fragile
from tests.helpers.serving import make_engine
from tests.helpers.toy import QWEN3, toy_model

from tiny_llm_lab.serving.async_engine.listener import AddedRequest
from tiny_llm_lab.serving.async_engine.reports import Reports, facts_of
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.types import EngineOutput, SamplingParams


class Metered:
    """Every forward pass takes a second of a clock that otherwise stands still."""

    def __init__(self, llm: Any, config: Any, **options: Any) -> None:
        clock = self.clock = FakeClock()

        class Slow(Fragile):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                clock.now += 1
                return super().__call__(*args, **kwargs)

        self.model = Slow(toy_model(llm))
        self.metrics = EngineMetrics()
        self.engine = make_engine(
            llm,
            self.model,
            config,
            clock=clock,
            on_step=lambda plan, stats: self.metrics.stepped(self.reports.step(plan, stats)),
            **options,
        )
        self.reports = Reports(self.engine)
        self.metrics.started(facts_of(self.engine, QWEN3))

    def add(self, name: str, prompt: list[int], max_tokens: int, ignore_eos: bool = True) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
        self.engine.add(name, prompt, sampling)
        self.metrics.added(AddedRequest(name, len(prompt), sampling, self.clock.now), self.reports.queues())

    def step(self) -> list[EngineOutput]:
        outputs: list[EngineOutput] = self.engine.step()
        self.metrics.produced(outputs)
        return outputs

    def run(self) -> None:
        while self.engine.has_requests:
            self.step()

    def abort(self, name: str) -> None:
        assert self.engine.abort(name)
        self.metrics.aborted(name, self.reports.queues())

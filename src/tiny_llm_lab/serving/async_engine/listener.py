"""The events of an engine, for whoever listens: metrics, the live page, a log."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_lab.types import EngineOutput, SamplingParams, SchedulerConfig, StepPlan, StepStats
from tiny_llm_lab.types.scheduling.serving import Engine


@dataclass(frozen=True)
class AddedRequest:
    """A request that the engine has accepted."""

    request_id: str
    num_prompt_tokens: int
    sampling: SamplingParams
    arrival_s: float  # on time.perf_counter, like all times of the engine


class EngineListener:
    """A base class that ignores every event.

    Called on the engine's thread, between steps: must be quick, and must not raise.
    """

    def started(self, engine: Engine, config: SchedulerConfig) -> None:
        """The engine is ready, or has a new `config`."""

    def added(self, request: AddedRequest) -> None: ...

    def stepped(self, engine: Engine, plan: StepPlan, stats: StepStats) -> None:
        """A step was computed. Finished requests have left the engine; their outputs come next."""

    def produced(self, outputs: Sequence[EngineOutput]) -> None:
        """The last step's output for each request that got a token."""

    def aborted(self, request_id: str) -> None:
        """A request left the engine before its end, because its client has gone."""

    def failed(self, request_id: str) -> None:
        """A step failed, or the engine has stopped: as `aborted`, where it makes no difference."""
        self.aborted(request_id)

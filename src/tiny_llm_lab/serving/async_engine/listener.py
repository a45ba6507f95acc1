"""What is told of an engine's life: to metrics, to the live page, to a log."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_lab.types import EngineOutput, SamplingParams, SchedulerConfig, StepPlan, StepStats
from tiny_llm_lab.types.scheduling.serving import Engine


@dataclass(frozen=True)
class AddedRequest:
    """A request that the engine has taken."""

    request_id: str
    num_prompt_tokens: int
    sampling: SamplingParams
    arrival_s: float  # on time.perf_counter, as are all times of the engine


class EngineListener:
    """Hears nothing of what it is told, to derive others from.

    Called on the engine's thread, between steps: must be quick, and must not raise.
    """

    def started(self, engine: Engine, config: SchedulerConfig) -> None:
        """The engine is ready, or runs by another `config` from now on."""

    def added(self, request: AddedRequest) -> None: ...

    def stepped(self, engine: Engine, plan: StepPlan, stats: StepStats) -> None:
        """A step was computed; finished requests have left the engine, their outputs come next."""

    def produced(self, outputs: Sequence[EngineOutput]) -> None:
        """What the last step brought, for each request that it served with a token."""

    def aborted(self, request_id: str) -> None:
        """A request left the engine before its end: its client has gone."""

    def failed(self, request_id: str) -> None:
        """A step failed, or the engine has stopped: as `aborted`, where it makes no difference."""
        self.aborted(request_id)

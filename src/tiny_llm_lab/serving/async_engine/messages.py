"""What an engine and its users tell each other: data alone, so that it can cross processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_llm_lab import types
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.types.scheduling.no_prefix_disk import DiskCounts


@dataclass(frozen=True)
class NewRequest:
    """A request to be added; fields as in `Engine.add`."""

    request_id: str
    prompt: Sequence[int]
    sampling: types.SamplingParams = types.SamplingParams()
    priority: int = 0
    priority_class: types.PriorityClass = "interactive"
    arrival_s: float = 0.0  # on time.perf_counter, which the processes of a machine share
    pictures: tuple[Picture, ...] = ()  # of the prompt, whose tokens `expanded` has given them


@dataclass(frozen=True)
class Add:
    """Add all of `requests`, or none. The engine replies with `number`: `Added` or `Refused`."""

    number: int
    requests: tuple[NewRequest, ...]


@dataclass(frozen=True)
class Abort:
    """Drop requests before the next step; those that have ended are fine."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Reconfigure:
    """Schedule by these from the next step on. The engine replies with `Configured` or `Refused`."""

    number: int
    enable_chunked_prefill: bool
    max_num_batched_tokens: int


@dataclass(frozen=True)
class Stop:
    """Compute no further step."""


@dataclass(frozen=True)
class FormsTried:
    """The forms of an `Add` may be compiled, or `error` says why not: the engine tells itself."""

    number: int
    cpu_s: float = 0.0  # that compiling them takes
    error: BaseException | None = None


@dataclass(frozen=True)
class FormsReady:
    """The forms of an `Add` are compiled, or cannot be: the engine tells itself."""

    number: int


Command = Add | Abort | Reconfigure | Stop | FormsTried | FormsReady


@dataclass(frozen=True)
class EngineFacts:
    """What does not change while an engine runs, except `config`, which is the one at the start."""

    model: types.ModelConfig
    config: types.SchedulerConfig
    num_blocks: int
    block_size: int
    block_bytes: int
    num_states: int = 0  # of running requests and snapshots of a hybrid model, the most
    has_prefix_cache: bool = True
    folder: Path = Path()  # of the checkpoint
    pid: int = 0  # of the process that computes
    activation_bits: int = 16  # that the model computes with
    kernels: str = ""  # that compute it: cpp, mlx or off


@dataclass(frozen=True)
class Queues:
    """An engine between two steps."""

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0


@dataclass(frozen=True)
class CacheCounts:
    """The counters of a prefix cache. After a failed step there is another one, which counts from 0."""

    generation: int = 0  # the number of the cache
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_snapshots: int = 0
    num_snapshots_used: int = 0
    num_snapshots_evicted: int = 0


@dataclass(frozen=True)
class DraftCounts:
    """The counters of speculation."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True)
class StepReport:
    """A step, and the engine after it. Finished requests have left; their outputs come next."""

    plan: types.StepPlan
    stats: types.StepStats
    budget: int  # tokens
    held: tuple[tuple[str, int, int], ...]  # of running requests: id, blocks, cached tokens of the prompt
    cache: CacheCounts
    drafts: DraftCounts
    disk: DiskCounts  # of --prefix-cache-dir

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its objects: for small models that takes 1 % of a step less."""
        parts = self.plan, self.stats, self.cache, self.drafts, self.disk
        return _report, (self.budget, self.held, *(tuple(vars(each).values()) for each in parts))


def _report(budget: int, held: Any, plan: Any, stats: Any, cache: Any, drafts: Any, disk: Any) -> StepReport:
    counts = CacheCounts(*cache), DraftCounts(*drafts), DiskCounts(*disk)
    return StepReport(types.StepPlan(*plan), types.StepStats(*stats), budget, held, *counts)


@dataclass(frozen=True)
class Ready:
    """The first event: requests are taken."""

    facts: EngineFacts


@dataclass(frozen=True)
class Added:
    """The reply to `Add`: `request_ids` are in the engine. The others left while forms were compiled."""

    number: int
    queues: Queues
    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Configured:
    """The reply to `Reconfigure`."""

    number: int
    config: types.SchedulerConfig


@dataclass(frozen=True)
class Refused:
    """The reply to a command that could not be done; in place of `Ready`, number 0: there is no engine."""

    number: int
    error: BaseException


@dataclass(frozen=True)
class Stepped:
    """A step was computed; `Produced` comes next if a request got a token."""

    report: StepReport


@dataclass(frozen=True)
class Produced:
    """What is new for each request that got a token."""

    outputs: Sequence[types.EngineOutput]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without an object for each token."""
        return _produced, ([_row(output) for output in self.outputs],)


_Row = tuple[str, int, int, str, float, int]  # an output of one token: see _row


def _row(output: types.EngineOutput) -> _Row | types.EngineOutput:
    if len(output.events) == 1 and not (output.completion or output.logprobs or output.prompt_logprobs):
        [event] = output.events
        if isinstance(event, types.TokenEvent) and event.token_id is not None:
            where, when = event.prompt_idx, event.time_s
            return output.request_id, where, event.token_id, event.text, when, output.num_cached_tokens
    return output


def _produced(rows: Sequence[_Row | types.EngineOutput]) -> Produced:
    return Produced([each if isinstance(each, types.EngineOutput) else _output(*each) for each in rows])


def _output(
    name: str, prompt_idx: int, token: int, text: str, time_s: float, cached: int
) -> types.EngineOutput:
    event = types.TokenEvent(prompt_idx, token, text, time_s)
    return types.EngineOutput(name, (token,), text, events=(event,), num_cached_tokens=cached)


@dataclass(frozen=True)
class Left:
    """Requests left the engine before their end: with an error, or because of `Abort`."""

    request_ids: tuple[str, ...]
    queues: Queues
    error: BaseException | None = None


@dataclass(frozen=True)
class MemoryNote:
    """What the engine does about a lack of memory; "" while there is enough."""

    text: str


@dataclass(frozen=True)
class Working:
    """There is no step, as pictures are read, or prefixes from the disk; sent about once a second."""


EngineEvent = Ready | Added | Configured | Refused | Stepped | Produced | Left | MemoryNote | Working


class EngineStoppedError(RuntimeError):
    """The engine takes no requests, or lost this one when it stopped; a client may ask again in `retry_s`."""

    def __init__(self, message: str, retry_s: int = 1) -> None:
        super().__init__(message, retry_s)
        self.retry_s = retry_s

    def __str__(self) -> str:
        return str(self.args[0])


class DeviceLostError(EngineStoppedError):
    """The engine's process can compute no more: its device refuses all work, or step after step failed."""

"""A drill's load on an engine that a test steps: what its metrics and its clients see, without a clock."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from tests.helpers.fakes import FakeClock

from tiny_llm_lab.cli.commands import COMMANDS
from tiny_llm_lab.course.drills.command import Drill, Entry, body_of
from tiny_llm_lab.serving.async_engine.listener import AddedRequest
from tiny_llm_lab.serving.async_engine.reports import Reports, facts_of
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.server.command import model_settings
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics, Totals
from tiny_llm_lab.serving.server.routes.completions import CompletionRequest
from tiny_llm_lab.types import Completion, StepPlan, StepStats
from tiny_llm_lab.types.packages import PACKAGES

_LATER = 20  # steps
_MOST = 4000  # steps of a load; a healthy server takes a third


@dataclass
class Seen:
    """What a drill shows. A step takes a second of its clock."""

    totals: Totals = field(default_factory=Totals)
    answers: dict[str, Completion] = field(default_factory=dict)  # by name, in the order of their ends
    plans: list[StepPlan] = field(default_factory=list)
    most: dict[str, float] = field(default_factory=dict)  # the largest value that a gauge had after a step

    @property
    def texts(self) -> dict[str, str]:
        return {name: done.text for name, done in sorted(self.answers.items())}

    @property
    def largest_step(self) -> int:
        return max(plan.total_num_scheduled_tokens for plan in self.plans)

    def seconds(self, name: str) -> float:
        """The end-to-end time of an answer."""
        timing = self.answers[name].timing
        return timing.token_s[-1] - timing.arrival_s


@contextmanager
def imported(folder: Path, name: str) -> Iterator[None]:
    """The package `name` in `folder` is what "ref" means."""
    sys.path.insert(0, str(folder))
    try:
        with patch.dict(PACKAGES, {"ref": name}):
            importlib.import_module(name)
            yield
    finally:
        sys.path.remove(str(folder))
        for each in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[each]


def observe(drill: Drill) -> Seen:
    """Send the drill's load to an engine with the drill's flags; "ref" is what is imported now."""
    served = _Served(drill)
    for number, wave in enumerate(drill.load):
        now = 0
        for entry in sorted(wave, key=lambda entry: entry.get("later", 0)):
            later, now = entry.get("later", 0) - now, entry.get("later", 0)
            served.step(_LATER * later)
            served.add(entry, f"{number}")
        served.step(_MOST)
    assert not served.engine.has_requests, "it does not end"
    served.seen.totals = served.metrics.totals()
    served.engine.release()
    return served.seen


class _Served:
    def __init__(self, drill: Drill) -> None:
        args = COMMANDS.parser("serve").parse_args(drill.serve_arguments)
        self.seen, self.metrics, self.clock = Seen(), EngineMetrics(), FakeClock()
        loaded, self.engine = load_and_build(model_settings(args), self._stepped)
        self.tokenizer = loaded.checkpoint.tokenizer
        core = self.engine.core
        core.options = replace(core.options, clock=self.clock)
        self.reports = Reports(self.engine)
        self.metrics.started(facts_of(self.engine, loaded.model.config))

    def _stepped(self, plan: StepPlan, stats: StepStats) -> None:
        self.metrics.stepped(self.reports.step(plan, stats))
        self.seen.plans.append(plan)
        totals = self.metrics.totals()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            self.seen.most[name] = max(self.seen.most.get(name, 0), getattr(totals, name))

    def add(self, entry: Entry, wave: str) -> None:
        body = CompletionRequest(**body_of(entry))
        sampling = body.sampling_params({}, max_tokens=body.max_tokens, logprobs=body.logprobs)
        for number, prompt in enumerate(body.prompts):
            name = f"{wave} {entry['name']} {number}"
            tokens = self.tokenizer.encode(prompt)
            self.engine.add(name, tokens, sampling, priority=body.priority or 0)
            told = AddedRequest(name, len(tokens), sampling, self.clock.now)
            self.metrics.added(told, self.reports.queues())

    def step(self, count: int) -> None:
        while self.engine.has_requests and count:
            count -= 1
            self.clock.now += 1
            outputs = self.engine.step()
            self.metrics.produced(outputs)
            for each in outputs:
                if each.completion is not None:
                    self.seen.answers[each.request_id] = each.completion

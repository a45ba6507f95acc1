"""Snapshots of a hybrid's states are counted in metrics, in the log's line and for the page."""

from tests.helpers.fake_clock import FakeClock
from tests.helpers.hybrids import HYBRID, hybrid_weights
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.async_engine.reports import Reports, facts_of
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.routes.metrics import StatsLog
from tiny_llm_lab.types import EngineOptions, SamplingParams, SchedulerConfig

llm = TaskNames(load_solution("ref"))
ANSWER = SamplingParams(max_tokens=1, ignore_eos=True)


def test_snapshots_are_counted():
    metrics, clock = EngineMetrics(), FakeClock()

    def on_step(plan, stats):
        metrics.stepped(reports.step(plan, stats))

    config = SchedulerConfig()
    engine = llm.Engine(
        llm.Qwen(HYBRID, hybrid_weights(HYBRID), llm.ArrayOps()),
        ByteTokenizer(),
        config,
        EngineOptions(num_blocks=16, num_states=3, snapshot_every=160, on_step=on_step),
    )
    reports = Reports(engine)
    metrics.started(facts_of(engine, HYBRID))
    log = StatsLog(metrics, clock)
    for text in ("a" * 40, "b" * 40, "b" * 40, "c" * 40):
        engine.add("r", list(text.encode()), ANSWER)
        while engine.has_requests:
            engine.step()
    totals = metrics.totals()
    assert totals.state_snapshots == 2
    assert totals.state_snapshots_used == 1
    assert totals.state_snapshots_evicted == 1
    clock.now += 1
    line = log.line()
    assert line is not None and line.endswith("State snapshots: 2")

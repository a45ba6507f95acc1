"""Snapshots of a hybrid's states are counted in metrics, in the log's line and for the page."""

from tests.helpers.fake_clock import FakeClock
from tests.helpers.hybrids import HYBRID, hybrid_weights
from tests.helpers.toy_server import Stepped

from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.routes.metrics import StatsLog
from tiny_llm_lab.types import SchedulerConfig


def test_snapshots_are_counted():
    llm = TaskNames(load_solution("ref"))
    metrics, clock = EngineMetrics(), FakeClock()
    model = llm.Qwen(HYBRID, hybrid_weights(HYBRID), llm.ArrayOps())
    run = Stepped(metrics, SchedulerConfig(), model, num_blocks=16, num_states=3, snapshot_every=160)
    log = StatsLog(metrics, clock)
    for text in ("a" * 40, "b" * 40, "b" * 40, "c" * 40):
        run.add("r", list(text.encode()), max_tokens=1)
        run.run()
    totals = metrics.totals()
    assert totals.state_snapshots == 2
    assert totals.state_snapshots_used == 1
    assert totals.state_snapshots_evicted == 1
    clock.now += 1
    line = log.line()
    assert line is not None and line.endswith("State snapshots: 2")

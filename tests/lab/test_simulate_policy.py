"""The latency policy next to the best static budget, which is chosen with hindsight, on small simulations."""

from dataclasses import replace

import pytest

from tiny_llm_lab.measure.simulate.run import simulate
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.runtime.solution import load_scheduling

_STATIC = ("128", "256", "512")  # larger ones are worse in each of these
_LEAST = 0.98


@pytest.mark.parametrize(
    "setting",
    [
        Setting(lengths="fixed:4096:128", rate=1.0),
        Setting(lengths="fixed:4096:128", rate=1.0, burstiness=0.25),
        Setting(lengths="fixed:4096:128", rate=2.0, seed=3),
        Setting(lengths="arxiv", rate=0.7),
        Setting(lengths="sharegpt", rate=1.8, burstiness=0.25, noise=0.05, seed=3),
    ],
    ids=["uniform", "uniform, bursts", "uniform, near capacity", "long", "mixed, bursts, noise"],
)
def test_the_policy_serves_what_the_best_static_budget_does(setting):
    llm, small = load_scheduling("ref"), replace(setting, requests=100)
    cost = small.step_cost()
    found = {
        budget: simulate(llm, replace(small, budget=budget), cost).goodput for budget in (*_STATIC, "slo")
    }
    assert found["slo"] >= _LEAST * max(found[budget] for budget in _STATIC), found

"""bench-engine under load: serving in time, what latencies come to, and who is compared with whom."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest

from tiny_llm_lab.bench.engine_steps.contest import Contest, gaps_meanwhile, make_contest, outcome
from tiny_llm_lab.bench.engine_steps.load import is_served_well, latencies, serve
from tiny_llm_lab.bench.engine_steps.mlx_lm_entry import CountingNetwork
from tiny_llm_lab.bench.engine_steps.peers import is_loss, peers_report
from tiny_llm_lab.bench.engine_steps.setting import Setting, answering
from tiny_llm_lab.bench.engine_steps.slo import (
    POLICY,
    STATIC,
    UNCHUNKED,
    Load,
    Machine,
    bursts,
    engine_for,
    long_prompt,
    sized,
    slo_report,
)
from tiny_llm_lab.bench.engine_steps.turns import Ratio
from tiny_llm_lab.simulate.traffic import LengthKind
from tiny_llm_lab.types import Completion, EngineOutput, Prompt, SchedulerConfig, Timing, UserError

RUN = latencies([Timing(0.0, (1.0, 2.0))], 1.0, 1.0)


def setting(**others: Any) -> Setting:
    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint: Any = None
    return Setting(None, model, checkpoint, **others)


class FakeEngine:
    """A token for everybody in every step, which takes a second; the clock stands still otherwise."""

    def __init__(self, num_tokens: int = 2) -> None:
        self.now_s, self.num_tokens, self.naps = 100.0, num_tokens, 0
        self._tokens: dict[str, tuple[float, list[float]]] = {}

    @property
    def has_requests(self) -> bool:
        return bool(self._tokens)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.naps += 1
        self.now_s += seconds

    def add(self, request_id: str, content: Any, sampling: Any, *, arrival_s: float) -> None:
        self._tokens[request_id] = (arrival_s, [])

    def step(self) -> list[EngineOutput]:
        self.now_s += 1.0
        outputs = []
        for request_id, (arrival_s, times) in list(self._tokens.items()):
            times.append(self.now_s)
            if len(times) == self.num_tokens:
                del self._tokens[request_id]
                timing = Timing(arrival_s, tuple(times))
                done = Completion(0, 1, (0,) * len(times), "", "length", timing)
                outputs.append(EngineOutput(request_id, (0,), "", done))
        return outputs


def test_requests_arrive_at_their_own_times_and_idle_time_is_slept() -> None:
    engine = FakeEngine()
    prompts = [Prompt([1], answering(2), arrival_s) for arrival_s in (0.0, 0.5, 10.0)]
    timings = serve(engine, prompts, engine.clock, engine.sleep)
    # The second one comes while a step is computed: it waits, and the wait counts.
    assert [timing.ttft_s for timing in timings[:2]] == [1.0, 1.5]
    assert timings[2].arrival_s == 10.0 and timings[2].token_s[0] == pytest.approx(11.0)
    assert engine.naps == pytest.approx(7 / 0.05, abs=1), "from 3 s to 10 s, in short naps"


def test_an_answer_of_another_length_is_an_error() -> None:
    engine = FakeEngine(num_tokens=3)
    with pytest.raises(UserError, match="request 0 got 3 tokens instead of 2"):
        serve(engine, [Prompt([1], answering(2))], engine.clock, engine.sleep)


def test_latencies_of_two_requests() -> None:
    timings = [Timing(0.0, (1.0, 1.5, 2.0)), Timing(1.0, (4.0, 5.0))]
    found = latencies(timings, itl_slo_s=0.5, ttft_slo_s=1.0)
    assert (found.ttft_p50_s, found.ttft_p99_s) == (1.0, 3.0)
    assert (found.itl_p50_s, found.itl_p99_s, found.itl_max_s) == (0.5, 1.0, 1.0)
    assert (found.total_s, found.goodput, found.attainment) == (5.0, 0.2, 0.5)
    assert found.output_tokens_per_s == 1.0


@pytest.mark.parametrize(("num_gaps", "is_well"), [(99, False), (100, True)])
def test_one_late_gap_in_a_hundred_is_allowed(num_gaps: int, is_well: bool) -> None:
    timing = Timing(0.0, tuple([1.0, 6.0] + [6.0 + i for i in range(1, num_gaps)]))
    assert len(timing.itl_s) == num_gaps
    assert is_served_well(timing, itl_slo_s=1.0, ttft_slo_s=1.0) is is_well
    assert not is_served_well(timing, itl_slo_s=9.0, ttft_slo_s=0.9)


def test_a_load_is_sized_to_the_machine() -> None:
    machine = Machine(decode_s=0.08, token_s=0.001, samples=())
    kinds = (LengthKind(1.0, 100, 0.0, 10, 0.0),)
    # A request is 0.1 s of prompt and ten eighths of a decode step: 0.2 s, at 60 % of the machine 3 a second.
    assert sized(kinds, machine, streams=8, load_s=20) == (60, pytest.approx(3.0))
    assert sized(kinds, machine, streams=8, load_s=0.1)[0] == 12, "fewer say nothing"
    assert long_prompt(setting(load_s=5.0), 1e-6) == 1536
    assert long_prompt(setting(load_s=5.0), 1.0) == 128


def test_bursts_are_seeded_fit_the_model_and_have_two_tokens_at_least() -> None:
    machine = Machine(decode_s=0.01, token_s=0.0002, samples=())
    load = bursts(setting(), machine)
    assert load.prompts == bursts(setting(), machine).prompts != bursts(setting(seed=1), machine).prompts
    assert load.itl_slo_s == pytest.approx(0.05)
    assert load.ttft_slo_s == pytest.approx(4 * 1536 * 0.0002)
    for prompt in load.prompts:
        answer = prompt.sampling.max_tokens
        assert answer is not None and answer >= 2 and len(prompt.content) + answer <= 4096


@pytest.mark.parametrize("budget", STATIC)
def test_a_fixed_budget_has_a_token_for_everyone_who_runs(budget: int) -> None:
    class Configured(Setting):
        def engine(self, config: SchedulerConfig, num_tokens: int, **others: Any) -> Any:
            return config

    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096))
    load, machine = Load([Prompt([1] * 9, answering(2))], 0.5, 1.0), Machine(0.1, 0.001, ())
    config = engine_for(Configured(None, model, cast(Any, None)), machine, load, f"budget {budget}")
    assert config.max_num_batched_tokens == budget >= config.max_num_seqs


def test_the_policy_is_compared_with_the_best_budget_inside_the_slo() -> None:
    def run(goodput: float, itl_s: float) -> list[Any]:
        return [replace(RUN, goodput=goodput, itl_p99_s=itl_s, itl_max_s=itl_s)]

    runs = {
        UNCHUNKED: run(1.0, 9.0),
        "budget 64": run(1.5, 0.4),
        "budget 128": run(2.0, 0.5),
        "budget 512": run(9.0, 2.0),  # the most, but its p99 ITL is outside
        POLICY: run(3.0, 0.5),
    }
    load = Load([Prompt([1], answering(2))], itl_slo_s=0.5, ttft_slo_s=1.0)
    machine = Machine(0.1, 0.001, ())
    ratios = {each.name: each.value for each in slo_report(runs, load, machine).ratios}
    assert ratios == {
        "goodput, policy / budget 128, the best fixed one inside the ITL SLO": 1.5,
        "max ITL, policy / budget 128, the best fixed one inside the ITL SLO": 1.0,
        "goodput, policy / whole prompts": 3.0,
        "max ITL, policy / whole prompts": 0.5 / 9.0,
    }
    report = slo_report(runs | {"budget 64": run(1, 2), "budget 128": run(1, 2)}, load, machine)
    assert "No fixed budget" in report.notes[1] and len(report.ratios) == 2
    errors = [SimpleNamespace(count=9, p50=p50, p90=0.3) for p50 in (0.1, 0.2, 0.4)]
    report = slo_report(runs, load, machine, errors)
    assert "errors of p50 20.0% and p90 30.0%" in report.notes[1]
    assert report.data["policy_errors"][0] == [9, 0.1, 0.3]


def test_a_contest_has_streams_long_prompts_and_short_ones_behind() -> None:
    contest = make_contest(setting(streams=3), first_tokens_s=1.0)
    assert contest.kinds == ("stream",) * 3 + ("long", "behind", "behind") * 2
    assert [prompt.arrival_s for prompt in contest.prompts[2:7]] == [0.0, 1.2, 1.2, 1.2, 2.2]
    assert [len(prompt.content) for prompt in contest.prompts[3:6]] == [512, 32, 32]
    assert contest.longest == 516
    assert contest.useful_tokens == 3 * (32 + 63) + 2 * (512 + 3) + 4 * (32 + 7)
    assert make_contest(setting(streams=3), None).kinds == ("stream",) * 3


def test_only_gaps_that_overlap_count() -> None:
    timing = Timing(0.0, (1.0, 2.0, 4.0, 7.0, 11.0))
    assert gaps_meanwhile([timing], [(4.5, 6.0)]) == [3.0]
    assert gaps_meanwhile([timing], [(2.0, 4.0)]) == [2.0], "gaps that only touch do not"
    assert gaps_meanwhile([timing], [(1.5, 3.0), (3.0, 5.0)]) == [1.0, 2.0, 3.0]


def test_the_outcome_of_a_run() -> None:
    prompts = tuple(Prompt([1] * 10, answering(3), arrival_s) for arrival_s in (0.0, 2.0, 3.0))
    contest = Contest("x", ("stream", "long", "behind"), prompts)
    timings = [Timing(0.0, (1.0, 2.0, 6.0)), Timing(2.0, (6.0, 7.0, 8.0)), Timing(3.0, (8.0, 9.0, 10.0))]
    found = outcome(contest, timings, num_computed_tokens=54, peak_bytes=7.0)
    assert (found.total_s, found.output_tokens_per_s, found.computed_per_useful) == (10.0, 0.9, 1.5)
    assert (found.itl_p99_s, found.itl_max_s) == (4.0, 4.0)
    assert (found.ttft_behind_s, found.ttft_long_s) == (5.0, 4.0)


@pytest.mark.parametrize(
    ("name", "value", "loses"),
    [
        ("out tok/s, a / b", 0.9, True),
        ("out tok/s, a / b", 1.5, False),
        ("ITL max ms, a / b", 1.5, True),
        ("ITL max ms, a / b", 1.02, False),
        ("peak MB, a / b", 0.5, False),
    ],
)
def test_less_is_better_except_for_speed(name: str, value: float, loses: bool) -> None:
    assert is_loss(Ratio(name, value, value, value)) is loses


def test_a_report_of_peers_says_where_ours_loses() -> None:
    prompts = (Prompt([1], answering(2)),)
    ours = outcome(Contest("x", ("stream",), prompts), [Timing(0.0, (1.0, 2.0))], 2, 30.0)
    theirs = replace(ours, peak_bytes=10.0, output_tokens_per_s=0.5)
    report = peers_report({"engine": [ours], "mlx-lm 128": [theirs]}, "x", [])
    assert report.notes == ["engine loses in: peak MB, engine / mlx-lm 128."]
    assert report.rows[0][3] == "-", "no long prompt: nothing to measure"
    assert "engine loses nowhere." in peers_report({"engine": [theirs], "b": [theirs]}, "x", []).notes


def test_a_counted_network_counts_padding_and_passes_everything_on() -> None:
    inner = SimpleNamespace(layers=[1, 2])
    network = CountingNetwork(
        type("Inner", (), {"__call__": lambda self, x, cache: cache, "layers": [1, 2]})()
    )
    assert network(mx.zeros((3, 5), mx.int32), cache="kept") == "kept"
    assert network.num_tokens == 15 and network.layers == inner.layers

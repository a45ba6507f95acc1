"""bench-engine as a command: which experiments run, what it writes, and how it ends."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from tests.helpers.recorded import recorded

from benchmarks.commands import COMMANDS
from benchmarks.engine import command, scatter
from benchmarks.engine import drafts as module
from benchmarks.engine import under_load as peers
from benchmarks.engine.config import BenchConfig
from benchmarks.engine.drafts import GATED, INVENTED, PLAIN, QUOTED, Side, Text, drafts
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench.latency import latencies
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.bench.sample import measure
from tiny_llm_lab.measure.bench.spec import Schedule, Spec
from tiny_llm_lab.measure.simulate.setting import load_calibration
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.types import EngineOutput, SamplingParams, Timing


@pytest.fixture
def bench(monkeypatch, capsys):
    """Run the command with experiments that only say their names; what it returned, stdout and stderr."""

    def experiment(name):
        zeros = {"split_tokens": 1, "small": [0.0] * 4, "large": [0.0] * 4}
        rows = [Row("b", {"a": [1.0]})]
        fit = {"r": 1.0, "slope_s": 0.1, "intercept_s": 0.2, "knee_tokens": 2.0}
        steps = {"tokens_of_steps": [1, 3], "seconds_of_steps": [0.3, 0.5], "tokens_fit": fit}
        data = {"calibration": zeros, **steps}
        return lambda config: Section(
            name, f"chunk {config.chunk}", (Column("a", "a"),), rows, notes=["r 1"], data=data
        )

    monkeypatch.setattr(command, "EXPERIMENTS", {name: experiment(name) for name in command.EXPERIMENTS})

    def run(*argv):
        code = cli.main(["bench-engine", *argv], COMMANDS)
        return code, *capsys.readouterr()

    return run


def test_the_command_runs_what_is_named_in_its_own_order(bench, tmp_path):
    file = tmp_path / "calibration.json"
    argv = ("--experiment", "peers", "--experiment", "chunk-position", "--calibration-out", str(file))
    code, out, _ = bench(*argv, "--chunk", "64", "--json")
    result = json.loads(out.splitlines()[-1])
    assert code == 0 and [each["name"] for each in result["sections"]] == ["chunk-position", "peers"]
    assert result["sections"][0]["title"] == "chunk 64" and result["settings"]["model"] == "default"
    assert (result["schema"], result["benchmark"]) == (1, "engine")
    assert load_calibration(file).split_tokens == 1


def test_features_run_only_if_named_on_a_published_vocabulary(bench, monkeypatch):
    asked, made = list[str](), BenchConfig.from_args

    def from_args(args):
        asked.append(args.model)
        args.model = "default"
        return made(args)

    monkeypatch.setattr(BenchConfig, "from_args", from_args)
    for argv in ((), ("--experiment", "features"), ("--experiment", "features", "--model", "x")):
        code, out, _ = bench(*argv, "--json")
        names = [each["name"] for each in json.loads(out.splitlines()[-1])["sections"]]
        assert code == 0 and any(name.startswith("features") for name in names) == bool(argv)
    assert asked == ["default", "random:qwen3-0.6b", "x"]


def test_step_times_are_drawn_over_their_tokens(bench, tmp_path):
    argv = ("--experiment", "chunk-position", "--plot")
    assert bench(*argv, str(tmp_path / "a.png"))[0] == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = bench(*argv, str(tmp_path / "missing" / "a.png"))
    assert code == 2 and "choose another file" in err
    assert bench("--experiment", "peers", "--plot", "a.png")[0] == 2


def test_the_figure_has_a_dot_for_each_step_the_fitted_line_and_its_knee(monkeypatch):
    drawn = []
    monkeypatch.setattr(scatter, "save_figure", lambda figure, path: drawn.append(figure))
    fit = {"r": 1.0, "slope_s": 0.1, "intercept_s": 0.2, "knee_tokens": 2.0}
    scatter.save_scatter([1, 3], [0.3, 0.5], fit, "r 1", Path("a.png"))
    line, dots, knee = drawn[0].axes[0].lines
    assert (list(dots.get_xdata()), list(dots.get_ydata())) == ([1, 3], [300, 500])
    assert list(line.get_ydata()) == pytest.approx([200, 500]) and set(knee.get_xdata()) == {2.0}


# Bench-engine --experiment drafts: what it counts, what it compares, and that it sees a changed answer


QUESTION = Text(QUOTED, ["Where?"], SamplingParams())


class Scripted:
    """An engine that answers every prompt with the same steps, each (tokens, drafted, accepted, seconds)."""

    def __init__(self, *steps, reason="stop", has_stats=True):
        self.steps, self.reason, self.left, self.now_s = steps, reason, 0, 0.0
        stats = SimpleNamespace(num_draft_tokens=0, num_accepted_tokens=0)
        self.core = self
        self.spec_stats = stats if has_stats else None

    def add(self, *_):
        self.left = len(self.steps)

    @property
    def has_requests(self):
        return self.left > 0

    def step(self):
        tokens, drafted, accepted, seconds = self.steps[-self.left]
        self.left -= 1
        self.now_s += seconds
        if self.spec_stats:
            self.spec_stats.num_draft_tokens += drafted
            self.spec_stats.num_accepted_tokens += accepted
        done = None if self.left else SimpleNamespace(finish_reason=self.reason)
        return [EngineOutput("0", tuple(tokens), "", done)]

    @property
    def clocks(self):
        """The second one is twice as fast."""
        return [lambda: self.now_s, lambda: 2 * self.now_s]


PROMPT = ([], 0, 0, 50.0), ([7], 0, 0, 50.0)  # a prompt in two chunks, and the first token
DRAFTED = Scripted(*PROMPT, ([8, 9], 4, 1, 2.0), ([3], 0, 0, 1.0), ([4, 5], 2, 2, 2.0))


def metrics(side):
    return {key: list(samples) for key, samples in side.row(QUESTION).samples.items()}


def test_decodes_count_from_the_first_token_on_and_the_end_is_a_token():
    side = Side("k = 4", DRAFTED)
    for number in (-1, 0, 0):
        side.serve(QUESTION, 0, number, DRAFTED.clocks)
    # Two answers of 5 tokens and an end behind the first token, in 3 steps of 5 s together; 3 of 6 accepted.
    assert metrics(side) == {
        "tokens_per_s": [12 / 10],
        "tokens_per_cpu_s": [12 / 20],
        "tokens_per_step": [12 / 6],
        "rows_per_step": [1 + 12 / 6],
        "acceptance": [0.5],
    }
    assert side.answers == {0: {(7, 8, 9, 3, 4, 5)}}


def test_without_drafts_there_is_no_acceptance_and_a_cut_answer_has_no_end():
    engine = Scripted(*PROMPT, ([8], 0, 0, 4.0), reason="length", has_stats=False)
    side = Side(PLAIN, engine)
    side.serve(QUESTION, 0, 0, engine.clocks)
    assert metrics(side) == {
        "tokens_per_s": [1 / 4],
        "tokens_per_cpu_s": [1 / 8],
        "tokens_per_step": [1.0],
        "rows_per_step": [1.0],
        "acceptance": [None],
    }


@pytest.fixture
def scripted(monkeypatch):
    """Runs the experiment on engines made by name, which share a clock."""

    def run(texts, **engines):
        monkeypatch.setattr(module, "texts_of", lambda config: [Text(name, ["?"] * 2, SamplingParams())
                                                                 for name in texts])  # fmt: skip
        sides = lambda *_: [Side(name.replace("_", GATED), each) for name, each in engines.items()]  # noqa: E731
        monkeypatch.setattr(module, "sides_of", sides)
        config = SimpleNamespace(rounds=3, context=512)
        return drafts(config, [lambda: sum(each.now_s for each in engines.values())] * 2)

    return run


def test_each_side_is_compared_with_no_drafts_and_the_gate_has_aims(scripted):
    slow = Scripted(([7], 0, 0, 1.0), ([8], 0, 0, 2.0), ([9], 0, 0, 2.0), ([], 0, 0, 2.0))
    fast, gated = (Scripted(([7], 0, 0, 1.0), ([8, 9], 2, 2, 3.0)) for _ in range(2))
    section = scripted([QUOTED, INVENTED], plain=slow, k=fast, k_=gated)
    assert [row.name for row in section.rows] == [
        f"{text}, {name}" for text in (QUOTED, INVENTED) for name in ("plain", "k", "k, gated")
    ]
    found = [(ratio.value, ratio.aim.at_least, ratio.is_met) for ratio in section.ratios if ratio]
    quoted, invented = [(2.0, None, None), (2.0, 1.8, True)], [(2.0, None, None), (2.0, 0.97, True)]
    assert found == quoted * 2 + invented * 2, "by both clocks"
    assert section.notes[0] == "Answers are the same as without drafts."
    assert section.data == {"differ": []}


@pytest.mark.parametrize("second", [[9], [8, 8]])
def test_an_answer_that_a_draft_changes_is_named(scripted, second):
    plain, other = (Scripted(([7], 0, 0, 1.0), (tokens, 0, 0, 1.0)) for tokens in ([8], second))
    section = scripted([QUOTED], plain=plain, same=plain, other=other)
    assert section.notes[0] == f"Answers DIFFER with {QUOTED}, other."
    assert section.data == {"differ": [f"{QUOTED}, other"]}


def test_an_answer_that_is_not_the_same_each_time_is_named(scripted):
    class Fickle(Scripted):
        def add(self, *_):
            super().add()
            self.steps = (([7], 0, 0, 1.0), ([int(self.now_s)], 0, 0, 1.0))

    plain = Scripted(([7], 0, 0, 1.0), ([0], 0, 0, 1.0))
    section = scripted([QUOTED], plain=plain, other=Fickle(*plain.steps))
    assert section.data == {"differ": [f"{QUOTED}, other"]}


# Bench-engine under load: serving in time, what latencies come to, and who is compared with whom


SPEC = Spec("toy", "ref")


def config(**others):
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint = None
    return BenchConfig(None, model, checkpoint, SPEC, **others)


@pytest.mark.usefixtures("toy")
def test_an_engine_serves_requests_that_arrive_and_counts_what_it_computes():
    requests = (Request("early", 4, 3), Request("long", 20, 2, 0.01, after_tokens=2))
    held = mx.zeros(2**25)  # as weights would be
    mx.eval(held)
    run = measure(replace(SPEC, requests=requests, batch_size=2, schedule=Schedule(budget=10)))
    assert run.num_computed_tokens == 4 + 2 + 20 + 1
    assert run.peak_bytes is not None and 0 < run.peak_bytes < held.nbytes, "above what was held before"
    assert [len(timing.token_s) for timing in run.timings] == [3, 2]
    early, long = run.timings
    assert early.token_s[1] + 0.01 <= long.arrival_s < long.token_s[0]
    assert sum(chunk.num_tokens for chunk in run.chunks if chunk.prompt_idx == 1) == 20


def test_mlx_lm_is_counted_with_its_padding():
    requests = (Request("early", 4, 3), Request("early", 12, 3))
    spec = Spec("default", "mlx-lm", requests=requests, batch_size=2, schedule=Schedule(32))
    computed = measure(spec).num_computed_tokens
    assert computed is not None and computed >= 4 + 12 + 2 * 2


def test_latencies_of_two_requests():
    found = latencies((Timing(0.0, (1.0, 1.5, 2.0)), Timing(1.0, (4.0, 5.0))))
    assert (found["ttft_p50_s"], found["ttft_p99_s"]) == (1.0, 3.0)
    assert (found["itl_p50_s"], found["itl_p99_s"], found["itl_max_s"]) == (0.5, 1.0, 1.0)


def test_peers_get_streams_long_prompts_and_short_ones_that_come_late():
    own = config(streams=4)
    workload = peers.workload_of(own)
    kinds = [each.kind for each in workload.requests()]
    assert [kinds.count(kind) for kind in ("early", "long", "late")] == [4, 2, 6]
    assert {each.prompt_len for each in workload.requests() if each.kind == "long"} == {512}
    rounded = replace(own, spec=replace(own.spec, activation_bits=8))
    ours, *theirs = peers.specs_of(rounded, workload)
    assert [each.activation_bits for each in (ours, *theirs)] == [8, "auto", "auto"]
    assert (ours.solution, ours.schedule, ours.batch_size) == ("ref", Schedule(budget=128 + 12), 12)
    assert [(each.solution, each.schedule.prefill_step) for each in theirs] == [
        ("mlx-lm", 128),
        ("mlx-lm", 2048),
    ]


def test_a_report_of_peers_says_where_ours_loses():
    def report(ours_peak, theirs_peak):
        runs = [replace(recorded(), peak_bytes=peak) for peak in (ours_peak, theirs_peak)]
        specs = [replace(SPEC, variant=name) for name in ("engine", "mlx-lm 128")]
        return peers.section({spec: [run] for spec, run in zip(specs, runs, strict=True)}, "x")

    found = report(30, 10)
    assert found.notes[-1] == "ref engine is worse in: peak MB, ref engine / ref mlx-lm 128."
    assert found.notes[0] == "ref engine computes in float32, ref mlx-lm 128 computes in float32."
    assert found.columns[1].cell(found.rows[0].samples["computed_per_useful"]) == "-", "not counted"
    assert report(10, 10).notes[-1] == "ref engine is nowhere worse."

"""bench-engine as a command: which experiments run, what it writes, and how it ends."""

import json
from pathlib import Path

import pytest

from benchmarks.commands import COMMANDS
from benchmarks.engine import command, scatter
from benchmarks.engine.config import BenchConfig
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.simulate.cost import load_calibration

Capture = pytest.CaptureFixture[str]


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

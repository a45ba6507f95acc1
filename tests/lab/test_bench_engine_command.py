"""bench-engine as a command: which experiments run, what it writes, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench.engine import command
from tiny_llm_lab.measure.bench.engine.config import BenchConfig
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.simulate.cost import load_calibration

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[..., Any]:
    """Run the command with experiments that only say their names; what it returned, stdout and stderr."""

    def experiment(name: str) -> Callable[[BenchConfig], Section]:
        zeros = {"split_tokens": 1, "small": [0.0] * 4, "large": [0.0] * 4}
        rows = [Row("b", {"a": [1.0]})]
        return lambda config: Section(
            name, f"chunk {config.chunk}", (Column("a", "a"),), rows, data={"calibration": zeros}
        )

    monkeypatch.setattr(command, "EXPERIMENTS", {name: experiment(name) for name in command.EXPERIMENTS})

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(["bench-engine", *argv])
        return code, *capsys.readouterr()

    return run


def test_the_command_runs_what_is_named_in_its_own_order(bench: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    argv = ("--experiment", "peers", "--experiment", "chunk-position", "--calibration-out", str(file))
    code, out, _ = bench(*argv, "--chunk", "64", "--json")
    result = json.loads(out.splitlines()[-1])
    assert code == 0 and [each["name"] for each in result["sections"]] == ["chunk-position", "peers"]
    assert result["sections"][0]["title"] == "chunk 64" and result["settings"]["model"] == "default"
    assert (result["schema"], result["benchmark"]) == (1, "engine")
    assert load_calibration(file).split_tokens == 1

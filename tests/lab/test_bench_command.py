"""`bench-chunked-prefill` as a command: its processes, its files, and how it ends."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.recorded import sample

from tiny_llm_lab import cli
from tiny_llm_lab.bench import chunked_prefill
from tiny_llm_lab.bench.child import CrashError, parse_output
from tiny_llm_lab.bench.recording import to_json
from tiny_llm_lab.bench.sample import Spec
from tiny_llm_lab.bench.workload import Workload
from tiny_llm_lab.commands.cli_errors import UnwrittenError
from tiny_llm_lab.types import UserError

Capture = pytest.CaptureFixture[str]
WORKLOAD = Workload(
    num_long=2, long_tokens=50, long_max_tokens=2, num_short=5, short_tokens=6, short_max_tokens=4
)


def test_what_a_child_says() -> None:
    assert parse_output('noise\n{"a": 1}\n', "") == {"a": 1}
    with pytest.raises(UserError, match="too long"):
        parse_output('{"error": "too long"}', "")
    with pytest.raises(UnwrittenError, match=r"TODO 2\.7\.1"):
        parse_output('{"todo": "TODO 2.7.1: write it"}', "")
    for stdout in ("", "Killed", "[1]"):
        with pytest.raises(CrashError, match="out of memory"):
            parse_output(stdout, "out of memory\n")


def test_a_spec_survives_the_way_to_the_child() -> None:
    spec = Spec("default", "ref", None, None, 32, 7, 1, WORKLOAD, tuple(WORKLOAD.arrivals(1.0, 2.0)))
    assert Spec.from_json(spec.to_json()) == spec
    assert Spec.from_json(replace(spec, arrivals=None).to_json()).arrivals is None


class Children:
    """Stands in for the processes; `then` is raised by the last of them."""

    def __init__(self, last: int = 1000, then: BaseException | None = None) -> None:
        self.specs: list[Spec] = []
        self.last, self.then = last, then

    def __call__(self, spec: Spec) -> dict[str, Any]:
        self.specs.append(spec)
        if len(self.specs) == self.last and self.then is not None:
            raise self.then
        stall_s = 8.0 if spec.prefill_step >= spec.workload.long_tokens else 1.0
        facts = {"device": "cpu", "dtype": "float32"}
        return to_json(sample(spec.prefill_step, stall_s, spec.repeat)) | {"facts": facts}


def bench(monkeypatch: pytest.MonkeyPatch, children: Children, out: Path, *argv: str) -> int:
    monkeypatch.setattr(chunked_prefill, "run_child", children)
    steps = ["--prefill-steps", "32", "999999"]
    return cli.main(["bench-chunked-prefill", *steps, "--out", str(out), *argv])


def test_table_json_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    children = Children()
    assert bench(monkeypatch, children, tmp_path / "new" / "folder") == 0
    out = capsys.readouterr().out
    assert "max ITL vs unchunked" in out and "prefill_step 32 had max ITL 0.12x" in out
    calibration, *measured = children.specs
    assert calibration.arrivals is None and len(measured) == 8
    assert len({spec.arrivals for spec in measured}) == 1, "every step must see the same arrivals"
    text = (tmp_path / "new" / "folder" / "chunked_prefill.json").read_text()
    result = json.loads(text)
    assert len(result["samples"]) == 8 and len(result["steps"]) == 2
    assert {"cpu", "cores", "mlx", "commit", "device"} <= result["host"].keys()
    assert str(tmp_path) not in text and str(Path.home()) + "/" not in text
    assert (tmp_path / "new" / "folder" / "chunked_prefill.png").read_bytes().startswith(b"\x89PNG")


def test_json_on_stdout_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert bench(monkeypatch, Children(), tmp_path, "--json", "--repeats", "1") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "chunked_prefill.json").read_text())


def test_ctrl_c_reports_once_every_step_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert bench(monkeypatch, Children(4, KeyboardInterrupt()), tmp_path) == 130
    assert "max ITL 0.12x" in capsys.readouterr().out
    assert bench(monkeypatch, Children(3, KeyboardInterrupt()), tmp_path) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("failure", "code", "last_line"),
    [
        (UserError("unknown model 'x'"), 2, "error: unknown model 'x'"),
        (UnwrittenError("TODO 2.7.1: write it"), 1, "TODO 2.7.1: write it"),
        (CrashError("Boom"), 1, "error: the measuring process of solution ref crashed, see above"),
    ],
)
def test_failures_of_a_child_end_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    failure: Exception,
    code: int,
    last_line: str,
) -> None:
    assert bench(monkeypatch, Children(2, failure), tmp_path) == code
    assert capsys.readouterr().err.splitlines()[-1] == last_line


def test_a_run_without_overlap_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    class Alone(Children):
        def __call__(self, spec: Spec) -> dict[str, Any]:
            value = super().__call__(spec)
            value["requests"][2]["arrival_s"] = 0.0
            return value

    assert bench(monkeypatch, Alone(), tmp_path) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: prefill_step 32, repeat 0: no short prompt arrived")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--repeats", "0"], "1 or more"),
        (["--prefill-steps", "0"], "1 or more"),
        (["--prefill-steps", "32", "32"], "twice"),
        (["--num-short", "1"], "--num-short"),
    ],
)
def test_bad_usage_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, argv: list[str], complaint: str
) -> None:
    assert bench(monkeypatch, Children(), tmp_path, *argv) == 2
    assert complaint in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("")
    assert bench(monkeypatch, Children(), tmp_path / "file") == 2
    assert "choose another --out" in capsys.readouterr().err

"""`report`: parts that fail, hang or are interrupted are said in their place, and the page shows the rest."""

import itertools
import json
import os
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.processes import finished

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.latency import columns
from tiny_llm_lab.measure.bench.report import Aim, Ratio, Row, Section
from tiny_llm_lab.measure.bench.throughput.command import needed_output_len
from tiny_llm_lab.measure.report import command, plan
from tiny_llm_lab.measure.report.command import page_of
from tiny_llm_lab.measure.report.plan import LENGTHS, STREAMS, Outcome, Part, Plan, outcomes
from tiny_llm_lab.runtime.console.tables import markdown_table
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED
from tiny_llm_lab.runtime.native import VARIABLE
from tools.commands import EVERY


def python(code, title="a part", **others):
    return Part(title, (sys.executable, "-c", code), others.pop("limit_s", 60.0), **others)


def run(*parts, limit_s=60.0):
    return list(outcomes(parts, limit_s))


def test_the_rest_goes_on_after_a_part_that_fails():
    crashed, empty, wrong, done = run(
        python("import sys; sys.exit('first\\nerror: no such model')"),
        python("pass"),
        python("print('no JSON')"),
        python("import json; print('words'); print(json.dumps({'a': 1})); raise SystemExit(1)"),
    )
    assert (crashed.status, crashed.said) == ("failed", "first / error: no such model")
    assert empty.status == wrong.status == "failed"
    assert done.status == "done", "a doctor that finds something wrong has done its part"
    assert done.document == {"a": 1} and done.said == ""


def test_tests_are_judged_by_their_exit_code():
    good, bad = run(
        python("import os; print(os.environ['X'])", says_json=False, environment={"X": "3 passed"}),
        python("print('1 failed'); raise SystemExit(1)", says_json=False),
    )
    assert (good.status, good.said, good.document) == ("done", "3 passed", None)
    assert (bad.status, bad.said) == ("failed", "1 failed")


_PARENT = """
import subprocess, sys, time
child = "import sys, time; file = open(sys.argv[1], 'w'); file.write('x'); file.flush(); time.sleep(60)"
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
subprocess.Popen([sys.executable, "-c", child, sys.argv[1]], **quiet)
time.sleep(60)
"""


def test_a_part_that_takes_too_long_is_ended_with_its_children(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "alive")
    alive, communicate = os.open(tmp_path / "alive", os.O_NONBLOCK), subprocess.Popen.communicate

    def late(process, timeout=None):
        if timeout is None:
            return communicate(process)
        select.select([alive], [], [])
        assert os.read(alive, 1) == b"x"
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", late)
    hung = replace(python(_PARENT), command=[sys.executable, "-c", _PARENT, str(tmp_path / "alive")])
    [outcome] = run(replace(hung, limit_s=30.0))
    assert (outcome.status, outcome.said) == ("failed", "took more than 30 s")
    # The end of the file: the child, which was the only one to write it, is no more.
    assert select.select([alive], [], [], 10.0)[0] and os.read(alive, 1) == b"", "a child goes on"
    os.close(alive)


def test_what_does_not_fit_into_the_time_is_left_out():
    clock = itertools.count(0.0, 10.0).__next__
    first, second = outcomes([python("print('{}')")] * 2, limit_s=25.0, clock=clock)
    assert first.status == "done"
    assert (second.status, second.said) == ("left out", "the time was up")


INTERRUPTS = [(10.0, ["interrupted", "interrupted", "done"]), (0.1, ["interrupted"] * 2 + ["left out"])]


@pytest.mark.parametrize(("apart_s", "then"), INTERRUPTS)
def test_an_interrupt_ends_a_part_and_two_end_the_report(apart_s, then, monkeypatch):
    calls = itertools.count()

    def fake(*_):
        if next(calls) < 2:
            raise KeyboardInterrupt
        return "done", "", {}

    monkeypatch.setattr(plan, "_run", fake)
    clock = itertools.count(0.0, apart_s).__next__
    assert [each.status for each in outcomes([python("")] * 3, 1e9, clock)] == then


def test_the_plan_has_all_of_it_in_both_sizes():
    full, quick = (list(Plan("default", Path("out"), is_quick).parts()) for is_quick in (False, True))
    titles = [each.title for each in full]
    assert titles[0] == "doctor"
    assert sum(title.startswith("throughput") for title in titles) == len(LENGTHS) * len(STREAMS) == 12
    assert sum(title.startswith("memory") for title in titles) == 3
    assert {"mixed | alternate", "paged | dense", "latencies across prefill_step"} <= set(titles)
    [times] = (each for each in full if each.title.startswith("step times"))
    assert times.command[times.command.index("--calibration-out") + 1] == "out/step-times.json"
    assert len(quick) < len(full)
    assert {each.environment.get(VARIABLE) for each in full} == {None, "cpp", "mlx"}


@pytest.mark.parametrize("is_quick", [False, True])
def test_every_command_of_the_plan_takes_its_flags(is_quick):
    for each in Plan("default", Path("out"), is_quick).parts():
        if each.says_json:
            name, *flags = each.command[3:]
            EVERY.parser(name).parse_args(flags)  # raises UserError for a flag that it does not take
        else:
            assert all(Path(path).exists() for path in each.command if path[:1] == "/" and "tests" in path)


def test_benchmarks_of_the_clone_are_found_from_anywhere(tmp_path):
    [part] = (each for each in Plan("default", Path("out")).parts() if each.title == "paged | dense")
    environment, command = {**os.environ, **part.environment}, [*part.command[:4], "--help"]
    done = finished(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr


def throughput(streams, ours, theirs):
    def row(name, value):
        metric = {"median": value, "min": value - 1, "max": value + 1}
        return {"name": name, "metrics": {"prefill_tok_s": metric, "decode_tok_s": metric}}

    rows = [row("ref", ours)] + ([row("mlx-lm", theirs)] if theirs else [])
    ratio = {"prefill_tok_s": ours / (theirs or 1), "decode_tok_s": ours / (theirs or 1)}
    return {
        "benchmark": "throughput",
        "solution": "ref",
        "batch": streams,
        "prompt_len": 128,
        "peers": {"mlx-lm": {"ratio": ratio}} if theirs else {},
        "skipped": {} if theirs else {"mlx-lm": "is not installed"},
        "sections": [{"title": "throughput", "rows": rows, "ratios": [], "notes": []}],
    }


def test_the_aims_stand_beside_the_figures():
    documents = [
        throughput(1, 110, 100),
        throughput(4, 50, 100),
        throughput(8, 99, 100),
        throughput(1, 5, None),
    ]
    page = page_of(host_facts(), "default", [Outcome(python(""), "done", document=x) for x in documents])
    assert "| decode, 1 x 128 | 110 (109-111) | 100 (99-101) | 1.10 | at least 1.0 ✓ |" in page
    assert "| decode, 8 x 128 | 99 (98-100) | 100 (99-101) | 0.99 | at least 1.0 ✗ |" in page
    assert "| decode, 4 x 128 | 50 (49-51) | 100 (99-101) | 0.50 |  |" in page, "no aim"
    assert "mlx-lm was not measured: is not installed." in page
    assert "4 of 4 parts are done" in page


def test_sections_have_units_and_notes():
    samples = {"itl_max_s": [0.0125, 0.01, 0.02], "peak_bytes": [3e6], "computed_per_useful": [None]}
    shown, row = columns(samples, has_spread=True), Row("mixed at 0", samples)
    ratio = Ratio("a / b", 1.2, 1.1, 1.3, Aim(at_most=1.15))
    section = Section("mixed", "mixed: a chunk", shown, [row], [ratio], ["A note."]).to_json()
    page = page_of(host_facts(), "m", [Outcome(python(""), "done", document={"sections": [section]})])
    assert "|  | ITL max ms | peak MB | computed/useful |" in page
    assert "| mixed at 0 | 12.5 (10.0-20.0) | 3.0 | - |" in page
    assert "- a / b: 1.200 (1.100 to 1.300), aim at most 1.15: MISSED\n- A note." in page


def test_published_numbers_have_a_source_and_one_of_ours():
    titles = {each.title for each in Plan("default", Path("out")).parts()}
    for row in command._PUBLISHED:
        assert row["source"].startswith("https://") and row["here"], row["what"]
        assert titles >= {title for title, *_ in row["here"]}, row["what"]
        small = {each.title for each in Plan("default", Path("out"), is_quick=True).parts()}
        assert not any("ybrid" in title or "9B" in title for title, *_ in row["here"] if title in small)


@pytest.mark.parametrize("is_quick", [True, False])
def test_every_bench_of_a_plan_has_answers_that_are_long_enough(is_quick):
    """Also those that a CPU leaves out."""
    commands = [each.command for each in Plan("default", Path("out"), is_quick=is_quick).parts()]
    sizes = [
        dict(itertools.pairwise(each)) for each in commands if "bench" in each and "--prompt-len" in each
    ]
    for flags in sizes:
        length, answer, batch = (int(flags[f"--{name}"]) for name in ("prompt-len", "output-len", "batch"))
        needed = needed_output_len(batch, length, int(flags.get("--prefill-step", length)))
        assert answer >= needed, flags
        assert not is_quick or length + answer <= 4096, "the shipped models have no more positions"
    assert len(sizes) > 8


def test_our_numbers_stand_next_to_published_ones():
    """The row that is named; a dash for what was not measured."""
    shown = columns(("itl_max_s",), has_spread=True)
    rows = [Row(f"prefill_step {step}", {"itl_max_s": [step / 1e4]}) for step in (512, 128)]
    document = {"sections": [Section("all", "all", shown, rows).to_json()]}
    title = "hybrid, two streams while a long prompt arrives"
    page = page_of(host_facts(), "m", [Outcome(python("", title), "done", document=document)])
    [line] = (line for line in page.splitlines() if "mlx-serve, gemma" in line)
    assert "| M4, 48 GB | 800 | 12.8 · – |" in line
    assert "| [mlx-serve](https://github.com/ddalcu/mlx-serve/pull/205) |" in line


def test_no_cell_breaks_a_table():
    assert (
        markdown_table(["a", "b"], [["mixed | alternate", "1"]]).splitlines()[-1]
        == "| mixed / alternate | 1 |"
    )


def test_the_files_and_the_exit_code(tmp_path, monkeypatch, capsys):
    finding = {"name": "compiler", "is_right": False, "says": "none", "cure": "install one"}
    document = json.dumps({"is_right": False, "findings": [finding]})
    parts = [python(f"print({document!r})", "doctor"), python("raise SystemExit('broken')", "bench")]
    monkeypatch.setattr(Plan, "parts", lambda self: iter(parts))
    for name in ("report", "report-2"):
        assert main(["report", "--out", str(tmp_path / "report")]) == EXIT_FAILED
        page = (tmp_path / name / "report.md").read_text()
        assert "✗ compiler      none" in page and "→ install one" in page
        assert "| bench | ✗ failed | 0 | broken |" in page
        kept = json.loads((tmp_path / name / "report.json").read_text())
        assert [each["status"] for each in kept["parts"]] == ["done", "failed"]
        assert str(tmp_path / name / "report.md") in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["report", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "choose another --out" in capsys.readouterr().err


def test_a_report_goes_on_where_it_ended(tmp_path, monkeypatch, capsys):
    """What failed or was left out is run, what is done is not, and another model is refused."""
    broken = tmp_path / "broken"
    broken.touch()
    code = f"import os, sys; sys.exit('broken') if os.path.exists({str(broken)!r}) else print('{{}}')"
    parts = [python("print('{\"a\": 1}')", "first"), python(code, "second")]
    monkeypatch.setattr(Plan, "parts", lambda self: iter(parts))
    out = ["report", "--out", str(tmp_path / "report")]
    assert main(out) == EXIT_FAILED
    broken.unlink()
    parts[0] = python("raise SystemExit('run again')", "first")
    assert main([*out, "--resume"]) == 0
    kept = json.loads((tmp_path / "report" / "report.json").read_text())["parts"]
    assert [(each["status"], each["document"]) for each in kept] == [("done", {"a": 1}), ("done", {})]
    for other in (["--model", "random:qwen3-shrunk"], ["--quick"], ["--temperature", "0"], ["--top-k", "5"]):
        assert main([*out, "--resume", *other]) == 2, other
        assert "no report of this model, commit and flags" in capsys.readouterr().err
    facts = host_facts()
    for host in ({"commit": "0"}, {"uncommitted_changes": None}):
        monkeypatch.setattr(command, "host_facts", lambda host=host: facts | host)
        assert main([*out, "--resume"]) == 2, host
    (tmp_path / "report" / "report.json").write_text("{}")
    assert main([*out, "--resume"]) == 2
    parts[0] = python("print('{}')", "first")
    quick = ["report", "--quick", "--top-k", "5", "--out", str(tmp_path / "quick")]
    assert main(quick) == main([*quick, "--resume"]) == 0


def test_the_model_follows_the_device(monkeypatch):
    assert plan.default_model() == "default"
    monkeypatch.setattr(plan.mx, "default_device", lambda: plan.mx.Device(plan.mx.gpu))
    assert plan.default_model() == "random:qwen3-0.6b,bits=4"


# `report` where tools are missing, and which build of MLX it names


def test_what_lacks_a_tool_is_left_out_and_no_fault(tmp_path, monkeypatch, capsys):
    parts = [
        Part("bench", (sys.executable, "-c", "print('{}')"), 60.0),
        Part("tests", (), 60.0, lacks="no C++ compiler"),
    ]
    monkeypatch.setattr(Plan, "parts", lambda self: iter(parts))
    assert main(["report", "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    assert "| tests |  left out | 0 | no C++ compiler |" in page.replace("✗", "")


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    lacking = {each.title: each for each in Plan("default", Path("out")).parts() if "tests" in each.title}
    of_kernels, of_model = (
        lacking[name] for name in ("tests of the C++ kernels", "tests of the model on MLX's operators")
    )
    assert of_kernels.lacks.startswith("cannot find a C++ compiler: install g++ or clang")
    assert of_model.lacks == "" and "not emulated" in of_model.command
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda _: None)
    assert all(each.lacks for each in Plan("default", Path("out")).parts() if "tests" in each.title)


def test_the_page_names_the_build_for_a_mac():
    assert "MLX 0.1 (macosx_26_0_arm64)," in page_of(
        host_facts() | {"mlx": "0.1", "mlx_metal_wheel": "macosx_26_0_arm64"}, "m", []
    )


# `report --quick`, all of it


@pytest.mark.long
def test_a_rehearsal(tmp_path):
    arguments = ("-m", "tiny_llm_lab", "report", "--quick", "--out", str(tmp_path / "report"))
    done = finished([sys.executable, *arguments])
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report" / "report.md").read_text()
    assert "✗ failed" not in page and "| decode, 8 x 128 |" in page

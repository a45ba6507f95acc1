"""`lab` as a command: its servers, its files and how it ends."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.helpers.simulated_server import SimulatedServers

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.labs import command
from tiny_llm_lab.measure.labs.lab import OwnLab
from tiny_llm_lab.measure.labs.result import Finding, LabResult, judged
from tiny_llm_lab.measure.labs.server import OwnServers, Variant
from tiny_llm_lab.measure.labs.setup import LabSetup
from tiny_llm_lab.serving.openai_client import ServedModel, first_model
from tiny_llm_lab.types import UserError

RunLab = Callable[..., int]


def made_up(setup, problem=None):
    section = Section("hol", "a title", [Column("x", "x")], [Row("off", {"x": (1.0, 2.0)})])
    finding = Finding(["It is <so>."], [judged("All is well", False, "it is not")], problem)
    return LabResult("hol", "What?", section, finding, lambda figure: None)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Runs `lab` with labs that are made up, by name."""

    def run(*argv, **labs):
        monkeypatch.setattr(command, "LABS", {name: OwnLab("What?", each) for name, each in labs.items()})
        return cli.main(["lab", *argv, "--out", str(tmp_path)])

    return run


def test_a_lab_writes_its_result_its_figure_and_a_page_and_nothing_twice(lab, tmp_path, capsys):
    asked = []

    def noted(setup):
        asked.append(setup.options.body)
        return made_up(setup)

    for flags in ((), ("--temperature", "0")):
        assert lab("hol", "--quick", "--seed", "3", *flags, hol=noted) == 0
    assert asked == [{}, {"temperature": 0}], "by itself a server draws as its users see it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hol", "hol-2"]
    files = sorted(path.name for path in (tmp_path / "hol").iterdir())
    assert files == ["figure.png", "index.html", "result.json"]
    result = json.loads((tmp_path / "hol" / "result.json").read_text())
    assert (result["settings"]["seed"], result["settings"]["sampling"]) == (3, "the server's")
    assert result["host"]["cores"]
    assert result["command"].startswith("./pdmw run lab hol --quick --seed 3")
    assert result["section"]["rows"][0]["metrics"]["x"]["samples"] == [1.0, 2.0]
    assert "It is &lt;so&gt;." in (tmp_path / "hol" / "index.html").read_text()
    out = capsys.readouterr().out
    assert "It is <so>." in out and "refuted" in out


def test_an_invalid_lab_exits_with_1(lab, tmp_path, capsys):
    assert lab("hol", hol=lambda setup: made_up(setup, "nothing overlapped")) == 1
    assert "INVALID: nothing overlapped" in capsys.readouterr().out
    assert not json.loads((tmp_path / "hol" / "result.json").read_text())["is_valid"]


def test_all_goes_on_after_a_lab_that_cannot_run(lab, tmp_path, capsys):
    def refuse(setup):
        raise UserError("not here")

    assert lab("all", memory=refuse, hol=made_up) == 1
    assert "we skipped memory: not here" in capsys.readouterr().err
    page = (tmp_path / "all" / "index.html").read_text()
    assert 'id="hol"' in page and page.count("All is well") == 1, "one lab needs no table of all verdicts"
    assert lab("memory", memory=refuse) == 2


def test_all_ends_with_the_verdicts_of_every_lab_and_the_page_begins_with_them(lab, tmp_path, capsys):
    assert lab("all", first=made_up, second=lambda setup: made_up(setup, "no overlap")) == 1
    said = capsys.readouterr()
    assert (
        "first is done: 1 of 2, less than a minute left" in said.err and "second is done: 2 of 2" in said.err
    )
    assert said.out.count("All is well") == 4 and said.out.rstrip().splitlines()[-1].count("hol") == 1
    page = (tmp_path / "all" / "index.html").read_text()
    assert page.count("All is well") == 4 and page.index("All is well") < page.index("<section")


@pytest.mark.parametrize(("rounds", "is_told"), [("1", True), ("2", True), ("3", False)])
def test_fewer_than_three_rounds_are_named_as_the_reason(rounds, is_told, lab, tmp_path):
    unclear = Finding(["so"], [judged("It is faster", None, "maybe")])
    assert lab("hol", "--rounds", rounds, hol=lambda setup: replace(made_up(setup), finding=unclear)) == 0
    said = json.loads((tmp_path / "hol" / "result.json").read_text())["conclusion"]
    assert any("too few for a verdict: take --rounds 3 or more" in each for each in said) is is_told


def test_own_servers_are_started_once_a_variant_and_end_by_sigint(tmp_path):
    variant = Variant("a b", ("--max-num-batched-tokens", "512"))
    with OwnServers(["--model", "default", "--max-model-len", "512"], tmp_path) as servers:
        setup = LabSetup(servers, "default", tmp_path)
        run = setup.send(variant, [setup.request(20, 3, "short", 0.0, 1)])
        [server] = servers._running.values()
        assert servers.url(variant) == server.base_url and len(servers._running) == 1
    assert len(run.records[0].token_s) == 3
    assert server.process.returncode == 0, (tmp_path / "a-b.log").read_text()
    assert "Traceback" not in (tmp_path / "a-b.log").read_text()


def test_a_server_that_ends_says_why(tmp_path):
    with OwnServers(["--model", "nowhere/at-all"], tmp_path) as servers, pytest.raises(UserError) as caught:
        servers.url(Variant("off", ("--max-num-batched-tokens", "0")))
    assert "max_num_batched_tokens must be" in str(caught.value) and "\n" not in str(caught.value)


def test_one_at_a_time_ends_a_server_before_the_next(tmp_path, monkeypatch):
    events = []

    class Server:
        def __init__(self, arguments, log_file):
            self.base_url = log_file.stem
            events.append(f"start {log_file.stem}")

        def interrupt(self):
            events.append(f"end {self.base_url}")

        def wait(self): ...

    monkeypatch.setattr("tiny_llm_lab.measure.labs.server._Server", Server)
    with OwnServers([], tmp_path, one_at_a_time=True) as servers:
        for name in ("a", "a", "b"):
            servers.url(Variant(name))
    assert events == ["start a", "end a", "start b", "end b"]


def test_sigterm_ends_the_servers_too(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(OwnServers, "close", lambda self: ended.append(True))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), OwnServers([], tmp_path):
        signal.raise_signal(signal.SIGTERM)
    assert ended == [True] and signal.getsignal(signal.SIGTERM) == before


def test_a_server_that_is_not_there_is_an_error_with_a_cure():
    with pytest.raises(UserError, match="start a server, or name its model with --model"):
        first_model("http://127.0.0.1:9", (command._CURE, command._CURE))


def test_memory_needs_no_other_server(tmp_path):
    servers = SimulatedServers(is_own=False)
    with pytest.raises(UserError, match="leave out --server"):
        command.LABS["memory"](LabSetup(servers, "m", tmp_path))


def test_the_conclusion_names_a_server_whose_settings_are_unknown(lab, monkeypatch, capsys):
    seen = []
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    asked = {"Authorization": "Bearer secret"}
    theirs = ServedModel("theirs", 512)
    monkeypatch.setattr(
        command, "first_model", lambda url, cures, headers: theirs if headers == asked else None
    )
    for more in ((), ("--model", "named")):
        assert (
            lab("hol", "--server", "http://there:1", *more, hol=lambda s: seen.append(s) or made_up(s)) == 0
        )
    assert [(setup.model, setup.max_model_len) for setup in seen] == [("theirs", 512), ("named", 4096)]
    assert [setup.options.api_key for setup in seen] == ["secret"] * 2
    out = capsys.readouterr().out
    assert out.count("Measured on the server at http://there:1, whose settings we don't know.") == 2

"""Every lab from end to end, against servers that are simulated in virtual time."""

import json
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.helpers.simulated_server import SimulatedServers

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.measure.labs import command
from tiny_llm_lab.measure.labs.command import LABS, page_of
from tiny_llm_lab.measure.labs.experiments import memory
from tiny_llm_lab.measure.labs.lab import QUICK, LabSetup, OwnLab
from tiny_llm_lab.measure.labs.result import Finding, LabResult, judged, save
from tiny_llm_lab.measure.labs.server import OwnServers, RunningServers, Variant
from tiny_llm_lab.measure.load.client import LoadRun, RequestRecord
from tiny_llm_lab.measure.traffic.datasets import DatasetSettings, make_requests
from tiny_llm_lab.measure.traffic.prompts import Texts, tokenizer_for
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.serving.openai_client import ServedModel, first_model
from tiny_llm_lab.serving.options.prompts_file import read_prompts
from tiny_llm_lab.types import SamplingParams, UserError

ON_SERVERS = [name for name in LABS if name != "memory"]


def setup_of(folder, servers=None, rounds=3):
    servers = servers or SimulatedServers()
    sizes = replace(QUICK, streams=6, stream_tokens=120, num_requests=10, rounds=rounds, num_stress=rounds)
    return LabSetup(servers, "default", folder, sizes=sizes, send_load=servers.send_load)


def run(name, folder):
    return LABS[name](setup_of(folder))


def verdicts(result):
    return {claim.text: claim.verdict for claim in result.finding.claims}


@pytest.mark.parametrize("name", ON_SERVERS)
def test_a_lab_says_something_valid_that_can_be_drawn_and_kept(name, tmp_path):
    result = run(name, tmp_path)
    assert result.finding.problem is None and result.finding.conclusion and result.finding.claims
    document = json.loads(json.dumps(result.to_json("./pdmw run lab", {"seed": 0}, {"cpu": "x"})))
    assert document["lab"] == name and document["is_valid"]
    assert document["conclusion"] == list(result.finding.conclusion)
    assert all("samples" in x for row in document["section"]["rows"] for x in row["metrics"].values())
    save(result, tmp_path / "figure.png")
    page = page_of("Labs", "a machine", [(result, tmp_path / "figure.png")])
    assert "data:image/png;base64," in page and "http" not in page


@pytest.mark.parametrize("name", ON_SERVERS)
@pytest.mark.parametrize("rounds", [1, 2])
def test_fewer_than_three_rounds_give_numbers_and_verdicts_of_counts_alone(name, rounds, tmp_path):
    result = LABS[name](setup_of(tmp_path, rounds=rounds))
    assert result.finding.problem is None and result.section.rows and result.finding.conclusion
    told = [claim.text for claim in result.finding.claims if claim.verdict != "not measurable"]
    counted = {"hol": ["A prompt of 4096 tokens"], "prefix": ["The hit rate is 2/3", "Hits are full blocks"]}
    assert len(told) == len(counted.get(name, [])), told
    assert all(text.startswith(start) for text, start in zip(told, counted.get(name, []), strict=True))


def test_chunks_shorten_the_stall_of_the_streams(tmp_path):
    result = run("hol", tmp_path)
    off, chunked = result.section.rows
    # A step of 2,048 tokens of a long prompt beside 6 decodes, and one of 512.
    assert off.median("stall_s") == pytest.approx(0.001 + 0.0001 * 2054)
    assert chunked.median("stall_s") == pytest.approx(0.001 + 0.0001 * 512)
    claim = "A prompt of 4096 tokens takes floor(4096 / 512) = 8 steps, interleaved with decodes"
    assert verdicts(result)[claim] == "refuted"
    assert result.section.data["steps"] == [8, 9]


def test_a_budget_alone_lets_no_short_prompt_overtake_and_a_share_does(tmp_path):
    off, chunked, shared = run("stress", tmp_path).section.rows
    assert chunked.median("short_ttft_s") > 0.95 * off.median("short_ttft_s")
    assert shared.median("short_ttft_s") < 0.8 * chunked.median("short_ttft_s")


def test_the_engines_own_budgets_are_measured_beside_the_fixed_ones(tmp_path):
    result = run("sweep", tmp_path)
    assert [row.name for row in result.section.rows] == ["256", "512", "1024", "2048", "4096", "slo"]
    assert result.section.rows[-1].median("itl_p99_s") <= result.section.data["itl_slo_s"]
    assert "If the engine chooses its budgets" in result.finding.conclusion[1]
    assert "inside; against 512, its TTFT p50 did not change" in result.finding.conclusion[1]


def test_hits_are_full_blocks(tmp_path):
    result = run("prefix", tmp_path)
    on, off = result.section.rows
    assert on.median("cached_tokens") == 992 and off.median("cached_tokens") == 0
    found = verdicts(result)
    assert found["The hit rate is 2/3 = 66.7 %"] == "refuted"
    assert found["Hits are full blocks: floor(shared / block) x block tokens"] == "confirmed"


def test_mixed_writes_the_requests_of_its_first_round_as_texts_that_other_commands_read(tmp_path):
    servers, sent = SimulatedServers(), list[Sequence[LoadRequest]]()

    def send(url, model, requests, options):
        sent.append(requests)
        return servers.send_load(url, model, requests, options)

    LABS["mixed"](replace(setup_of(tmp_path, servers), send_load=send))
    rounds = [each for each in sent if {one.kind for one in each} == {"long", "short"}]
    assert rounds[0][0].prompt != rounds[2][0].prompt, "a warm-up with the same texts would fill the cache"
    first, path = rounds[2], str(tmp_path / "mixed_workload.json")
    settings = DatasetSettings("custom", path, num_prompts=10)
    read = make_requests(settings, Texts(tokenizer_for(None, "default"), 0))
    assert [replace(each, kind="") for each in first] == read
    assert sorted(each.num_prompt_tokens for each in read) == [50] * 8 + [3000] * 2
    assert [each.kind for each in first][:2] != ["long"] * 2, "they are shuffled"
    prompts = [(each.content, each.sampling.max_tokens) for each in read_prompts(path, SamplingParams())]
    assert prompts == [(each.prompt, each.max_tokens) for each in first]


def test_variants_take_turns_in_alternating_order_after_a_warm_up(tmp_path):
    servers = SimulatedServers()
    setup = setup_of(tmp_path, servers)
    request = [setup.request(4, 2, "short", 0.0, 0)]
    runs = setup.measure([Variant("a"), Variant("b")], lambda number: request)
    assert servers.calls == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert {name: len(each) for name, each in runs.items()} == {"a": 3, "b": 3}


def test_a_failed_request_ends_the_lab(tmp_path):
    def refuse(url, model, requests, options):
        return LoadRun([RequestRecord(requests[0], 0.0, 0.0, error="HTTP 500: no")])

    setup = replace(setup_of(tmp_path), send_load=refuse)
    with pytest.raises(UserError, match="1 of 1 requests failed on a: HTTP 500: no"):
        setup.send(Variant("a"), [setup.request(4, 2, "short", 0.0, 0)])


@pytest.mark.parametrize("name", ON_SERVERS)
def test_a_server_that_runs_already_is_measured_once_and_the_rest_is_named(name, tmp_path):
    simulated = SimulatedServers()
    simulated.url(Variant("this server"))

    def send(url, *given):
        assert url == "http://there"
        return simulated.send_load("this server", *given)

    setup = replace(setup_of(tmp_path), servers=RunningServers("http://there"), send_load=send)
    result = LABS[name](setup)
    assert [row.name for row in result.section.rows] == ["this server"] or name == "hurts"
    assert result.skipped and all(each.endswith("needs its own server") for each in result.skipped)
    assert result.finding.conclusion
    save(result, tmp_path / "figure.png")


@pytest.mark.parametrize("name", [name for name in ON_SERVERS if name != "hurts"])
def test_a_proxy_that_holds_answers_back_ends_a_lab_in_one_line(name, tmp_path):
    servers = SimulatedServers()

    def send(*given):
        run = servers.send_load(*given)
        return LoadRun([replace(each, token_s=(each.end_s,) * len(each.token_s)) for each in run.records])

    setup = replace(setup_of(tmp_path, servers), send_load=send)
    with pytest.raises(UserError, match="all tokens of an answer were read at once: run it again"):
        LABS[name](setup)


def test_all_labs_measure_one_server_after_another_though_it_keeps_every_prefix(tmp_path, monkeypatch):
    simulated = SimulatedServers()
    simulated.url(Variant("http://there"))

    async def send(*given):
        return simulated.send_load(*given)

    monkeypatch.setattr("tiny_llm_lab.measure.labs.lab.run_load", send)
    # Drawing a figure takes longer than all else here.
    monkeypatch.setattr(command, "save", lambda result, path: path.write_bytes(b""))
    skipped = []
    monkeypatch.setattr(command, "log", lambda line: skipped.append(line) if "skipped" in line else None)
    flags = ["--quick", "--server", "http://there", "--model", "m", "--max-model-len", "1024"]

    def measure(*more):
        skipped.clear()
        cli.main(["lab", "all", *flags, *more, "--out", str(tmp_path)])
        return [line.split(":")[0].split()[-1] for line in skipped]

    assert measure() == ["memory"], skipped
    assert measure() == [name for name in LABS if name != "prefix"], "by now all are in the cache"
    assert measure("--seed", "1") == ["memory"], skipped


def test_prompts_of_two_rounds_share_no_beginning(tmp_path):
    setup = setup_of(tmp_path)
    first, second = (setup.prompt(50, seed) for seed in (1, 2))
    assert isinstance(first, tuple) and len(first) == 50 and first[:2] != second[:2]
    assert first == setup.prompt(50, 1)


# `lab` as a command: its servers, its files and how it ends


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


def test_merge_has_a_row_for_each_machine(lab, tmp_path, capsys):
    for cpu, samples in (("Zen 5", (0.001, 0.003)), ("M4", (1.0, 2.0))):
        section = Section("hol", "", [Column("a", "A"), Column("x", "X ms", ".0f", 1e3)], [])
        section = replace(section, rows=[Row("off", {"a": (9.0,), "x": samples}), Row("512", {"a": (1.0,)})])
        assert lab("hol", hol=lambda setup, section=section: replace(made_up(setup), section=section)) == 0
        path = sorted(tmp_path.glob("hol*/result.json"))[-1]
        result = json.loads(path.read_text())
        path.write_text(json.dumps(result | {"host": result["host"] | {"cpu": cpu, "cores": 2}}))
    folders = [str(each.parent) for each in sorted(tmp_path.glob("hol*/result.json"))]
    capsys.readouterr()
    assert lab("merge", *folders, "--metric", "X ms") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "hol: X ms, a row for each machine" and lines[1].split() == ["variant", "off", "512"]
    assert {"Zen 5, 2 cores, default 2", "M4, 2 cores, default 1500"} <= set(lines)
    assert (tmp_path / "merge" / "figure.png").stat().st_size > 0
    (tmp_path / "merge" / "result.json").write_text("[1]")
    for wrong in ([*folders, "--metric", "Y"], [str(tmp_path / "merge")], [str(tmp_path)], []):
        assert lab("merge", *wrong) == 2
    assert lab("hol", *folders) == 2, "nothing else takes folders"
    assert "with the columns A, X ms" in capsys.readouterr().err


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


MEMORY_FLAGS = [
    ([], ("default", "ref", None, None)),
    (["--device", "cpu", "--dtype", "float16"], ("default", "ref", "cpu", "float16")),
    (["--solution", "mlx-lm", "--dtype", "float32"], ("default", "mlx-lm", None, "float32")),
    (["--model", "random:llama-shrunk", "--bits", "4"], ("random:llama-shrunk,bits=4", "ref", None, None)),
]


@pytest.mark.parametrize(("flags", "wanted"), MEMORY_FLAGS)
def test_memory_loads_what_the_flags_say(flags, wanted, tmp_path, monkeypatch, capsys):
    def load(settings):
        assert (settings.model, settings.solution, settings.device, settings.dtype) == wanted
        raise UserError("loaded")

    monkeypatch.setattr(memory, "load", load)
    assert cli.main(["lab", "memory", *flags, "--out", str(tmp_path)]) == 2
    assert "loaded" in capsys.readouterr().err


def test_the_conclusion_names_a_server_whose_settings_are_unknown(lab, monkeypatch, capsys):
    seen = []
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    asked = {"Authorization": "Bearer secret"}
    theirs = ServedModel("theirs", 512)
    monkeypatch.setattr(command, "first_model", lambda url, cures, told: theirs if told == asked else None)
    for more in ((), ("--model", "named")):
        assert lab("hol", "--server=http://there:1", *more, hol=lambda s: seen.append(s) or made_up(s)) == 0
    assert [(setup.model, setup.max_model_len) for setup in seen] == [("theirs", 512), ("named", 4096)]
    assert [setup.options.api_key for setup in seen] == ["secret"] * 2
    out = capsys.readouterr().out
    assert out.count("Measured on the server at http://there:1, whose settings we don't know.") == 2

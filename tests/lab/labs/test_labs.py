"""Every lab from end to end, against servers that are simulated in virtual time."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.helpers.simulated_server import SimulatedServers

from tiny_llm_lab.measure.labs.command import LABS, page_of
from tiny_llm_lab.measure.labs.plot import save
from tiny_llm_lab.measure.labs.server import RunningServers, Variant
from tiny_llm_lab.measure.labs.setup import QUICK, LabSetup
from tiny_llm_lab.measure.load.record import LoadRun, RequestRecord
from tiny_llm_lab.measure.traffic.datasets import DatasetSettings, make_requests
from tiny_llm_lab.measure.traffic.prompts import Texts, tokenizer_for
from tiny_llm_lab.measure.traffic.request import LoadRequest
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
    assert all(
        "samples" in metric for row in document["section"]["rows"] for metric in row["metrics"].values()
    )
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
    assert (
        verdicts(result)[
            "A prompt of 4096 tokens takes floor(4096 / 512) = 8 steps, interleaved with decodes"
        ]
        == "refuted"
    )
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
    assert rounds[0][0].prompt != rounds[2][0].prompt, (
        "the warm-up has other texts, or the cache would know them"
    )
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


def test_prompts_of_two_rounds_share_no_beginning(tmp_path):
    setup = setup_of(tmp_path)
    first, second = (setup.prompt(50, seed) for seed in (1, 2))
    assert isinstance(first, tuple) and len(first) == 50 and first[:2] != second[:2]
    assert first == setup.prompt(50, 1)

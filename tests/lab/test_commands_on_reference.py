"""The commands around the real reference and a toy model: what scripted events cannot tell."""

import json
from dataclasses import replace

import pytest
from tests.helpers.toy import toy_checkpoint

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench.chunked.workload import Workload, overlap_complaint
from tiny_llm_lab.measure.bench.sample import measure
from tiny_llm_lab.measure.bench.spec import Schedule, Spec
from tiny_llm_lab.serving.options import model_options as options
from tiny_llm_lab.types import UserError

WORKLOAD = Workload(num_long=1, long_tokens=100, long_max_tokens=2, num_short=3, short_tokens=8, max_tokens=6)


pytestmark = pytest.mark.usefixtures("toy")


def test_the_three_loops_say_the_same(capsys):
    answers = set()
    for loop in ("simple", "cached", "chunked"):
        assert cli.main(["main", "--prompt", "What?", "--loop", loop, "--max-tokens", "8"]) == 0
        answers.add(capsys.readouterr().out)
    assert len(answers) == 1


def test_the_loops_end_where_the_positions_do(monkeypatch, capsys):
    short = replace(toy_checkpoint(), config=replace(toy_checkpoint().config, max_position_embeddings=12))
    monkeypatch.setattr(options, "load_checkpoint", lambda *_: short)
    answers = set()
    for loop in ("simple", "cached", "chunked"):
        assert cli.main(["main", "--prompt", "What?", "--loop", loop, "--max-tokens", "40"]) == 0
        out, err = capsys.readouterr()
        answers.add((out, err.split("answer ")[1].split(" ·")[0]))
    assert len(answers) == 1


def test_good_and_bad_prompts_of_one_batch(tmp_path, capsys):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(["Hello", "", "x" * 600, {"prompt": "Bye", "max_tokens": 2}]))
    flags = ["--max-tokens", "5", "--max-seq-len", "512", "--json"]
    assert cli.main(["batch-main", "--prompts", str(path), *flags]) == 1
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert [bool(request["error"]) for request in requests] == [False, True, True, False]
    assert requests[3]["num_output_tokens"] <= 2
    assert "600" in requests[2]["error"] and "512" in requests[2]["error"]


def spec(schedule, workload=WORKLOAD):
    return Spec("toy", "ref", None, None, schedule, 5, workload.requests())


RUNS = [
    (Schedule(32), [32, 32, 32, 4]),
    (Schedule(999999), [100]),
    (Schedule(budget=999), [100]),
    (Schedule(budget=999, threshold=40), [40, 40, 20]),
]


@pytest.mark.parametrize(("schedule", "sizes"), RUNS)
def test_a_run_has_every_token_and_every_chunk(schedule, sizes):
    run = measure(spec(schedule))
    on_cpu = {"device": "cpu", "dtype": "float32", "activation_bits": "16"}
    assert run.facts == on_cpu or run.facts["device"] == "gpu"
    assert run.weights_bytes > 0 and run.peak_bytes is not None and run.peak_bytes > 0
    assert [request.kind for request in run.requests] == ["early", "long", "late", "late"]
    assert [len(timing.token_s) for timing in run.timings] == [6, 2, 6, 6]
    assert all(timing.token_s[0] > timing.arrival_s for timing in run.timings)
    chunks = [chunk for chunk in run.chunks if chunk.prompt_idx == 1]
    assert [chunk.num_tokens for chunk in chunks] == sizes
    assert all(chunk.start_s < chunk.end_s for chunk in run.chunks)
    assert chunks[-1].end_s >= run.timings[1].token_s[0] > chunks[-1].start_s
    assert overlap_complaint(run) is not None, "all arrived at once, so none arrived in between"


@pytest.mark.parametrize("schedule", [Schedule(32), Schedule(budget=999)])
def test_a_run_is_a_step_ahead_if_it_is_told_so(monkeypatch, schedule):
    asked = []
    for module in ("tiny_llm_ref.generate.batch_generator", "tiny_llm_lab.types.scheduling.engine_options"):
        monkeypatch.setattr(f"{module}.is_async_scheduling", asked.append)
    for chosen in (None, True, False):
        measure(replace(spec(schedule), async_scheduling=chosen))
        assert asked == [chosen] * 2, "the warm-up as well"
        asked.clear()


def test_a_request_that_does_not_fit_is_told_before_it_is_tried():
    long = Workload(num_long=1, long_tokens=1024, num_short=2, short_tokens=8, max_tokens=4)
    with pytest.raises(UserError, match="a request has 1040 tokens with its answer and the model takes 1024"):
        measure(spec(Schedule(32), long))

"""`batch-main` and what it is made of: prompt files, progress, the live view, the closing table."""

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.helpers.fake_serving import FakeSolution, loaded, parse
from tests.helpers.toy import toy_checkpoint

from tiny_llm_lab.cli import batch_main, batch_report
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli.progress import BatchProgress
from tiny_llm_lab.runtime.console.tables import table_lines
from tiny_llm_lab.runtime.solution import load_serving, load_solution
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.options.engine_options import engine_settings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.serving.options.prompts_file import read_prompts
from tiny_llm_lab.types import (
    Completion,
    DoneEvent,
    PrefillEvent,
    Prompt,
    SamplingParams,
    Timing,
    TokenEvent,
    UserError,
)


@pytest.fixture
def solution(monkeypatch):
    fake = FakeSolution()
    monkeypatch.setattr(batch_main.model_options, "load_from_args", lambda *_, **__: loaded(fake))
    return fake


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("first prompt\n\nsecond\n")
    return str(path)


def test_every_request_has_a_row_and_there_is_a_total(solution, prompts, capsys):
    assert cli.main(["batch-main", "--prompts", prompts]) == 0
    out, err = capsys.readouterr()
    rows = out.splitlines()
    assert rows[0].split()[:8] == ["prompt", "status", "in", "tok", "out", "tok", "TTFT", "ms"]
    assert rows[1].split()[:5] == ["0", "stop", "2", "3", "2000.0"]
    assert rows[1].rstrip().endswith("one two three")
    assert rows[2].split()[:4] == ["1", "stop", "1", "3"]
    assert (
        rows[3].startswith("2 requests · 6 tokens in ")
        and "ITL p50 1000.0 p99 1000.0 max 1000.0 ms" in rows[3]
    )
    assert "0: prefilled: 2 tokens" in err and "1: done: stop, 3 tokens" in err


def test_an_error_shows_the_prompt_tokens_that_were_counted():
    progress = BatchProgress([Prompt("a")], batch_size=1, start_s=0.0)
    progress.update(PrefillEvent(0, 5, 9, 1.0))
    progress.update(DoneEvent(Completion(0, 0, (), "", "error", Timing(0.0), "no room: use less")))
    assert batch_report.request_rows(progress)[0][:4] == ["0", "error", "9", "0"]


def test_the_table_is_the_same_width_without_a_terminal(solution, prompts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    cli.main(["batch-main", "--prompts", prompts])
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize("width", [72, 80, 85, 92, 100, 140])
def test_a_row_takes_one_line_with_the_longest_gap_and_an_error_more(width, monkeypatch):
    monkeypatch.setattr(batch_report, "terminal_width", lambda: width)
    progress, text = BatchProgress([Prompt("a"), Prompt("b")], batch_size=2, start_s=0.0), "word " * 20
    progress.update(DoneEvent(Completion(0, 1024, (7,) * 99, text, "length", Timing(0.0, (1.5, 1.75, 9.0)))))
    progress.update(DoneEvent(Completion(1, 1024, (), "", "error", Timing(0.0), text)))
    head, *rows = table_lines(batch_report.COLUMNS, batch_report.request_rows(progress), width)[-40:]
    lines = [head, *rows]
    (first,) = (number for number, line in enumerate(lines) if "…" in line)
    assert "max ms" in "".join(lines[:first]) and "7250.0" in lines[first]
    assert lines[first + 1].split()[:2] == ["1", "error"]
    assert " ".join(lines[first + 1 :]).count("word") == 20


def test_json_holds_everything(solution, prompts, capsys):
    assert cli.main(["batch-main", "--prompts", prompts, "--json", "--batch-size", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"] == {
        "model": "default", "solution": "ref", "tensor_parallel_size": 1, "activation_bits": 16,
        "max_seq_len": 4096, "batch_size": 3, "prefill_step": 128,
    }  # fmt: skip
    first = document["requests"][0]
    assert (first["status"], first["num_prompt_tokens"], first["num_output_tokens"]) == ("stop", 2, 3)
    assert first["itl"] == {"count": 2, "p50_s": 1.0, "p90_s": 1.0, "p99_s": 1.0, "max_s": 1.0}
    assert first["text"] == "one two three" and len(first["token_s"]) == 3
    assert document["total"]["num_output_tokens"] == 6 and document["total"]["num_interrupted"] == 0


def test_a_bad_prompt_is_its_own_failure(solution, tmp_path, capsys):
    path = tmp_path / "p.json"
    path.write_text('["good one", "", "another"]')
    assert cli.main(["batch-main", "--prompts", str(path)]) == 1
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].split()[:2] == ["1", "error"] and "the prompt is empty: say more" in rows[2]
    assert "3 requests · 1 failed · 6 tokens" in rows[4]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_ctrl_c_still_prints_what_there_is(solution, prompts, capsys, flags):
    solution.fail_after = 7  # the first is done, the second has its first token
    assert cli.main(["batch-main", "--prompts", prompts, *flags]) == 130
    out = capsys.readouterr().out
    if flags:
        document = json.loads(out)
        assert [request["status"] for request in document["requests"]] == ["stop", "interrupted"]
        assert document["requests"][1]["num_output_tokens"] == 1
    else:
        assert out.splitlines()[2].split()[:4] == ["1", "interrupted", "1", "1"]
        assert "2 requests · 1 interrupted · 4 tokens" in out


def test_an_unwritten_task_is_one_line(solution, prompts, capsys):
    solution.fail_after, solution.failure = 0, NotImplementedError("task 2.7.1")
    assert cli.main(["batch-main", "--prompts", prompts]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("TODO 2.7.1: write ")


def test_there_are_no_more_rows_than_prompts(solution, prompts, capsys):
    assert cli.main(["batch-main", "--prompts", prompts, "--batch-size", "1000000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["batch_size"] == 1_000_000, "as it was asked for"
    assert solution.settings["batch_size"] == 2


def test_the_default_set_mixes_short_prompts_with_notes(solution):
    assert cli.main(["batch-main"]) == 0
    lengths = [len(prompt.content.split()) for prompt in solution.seen]
    assert len(lengths) == 8 and sum(length > 100 for length in lengths) == 2


# Progress and the live view


def test_slots_are_taken_and_given_back_in_place():
    progress = BatchProgress([Prompt("a")] * 3, batch_size=2, start_s=0.0)
    progress.update(PrefillEvent(0, 5, 5, 1.0))
    progress.update(PrefillEvent(1, 3, 6, 2.0))
    assert progress.slots == [0, 1] and progress.count("queued") == 1
    assert [request.phase for request in progress.requests] == ["prefill", "prefill", "queued"]
    progress.update(TokenEvent(0, 4, "hi", 3.0))
    assert progress.requests[0].phase == "decode"
    progress.update(DoneEvent(progress.requests[0].outcome()))
    assert progress.slots == [None, 1] and progress.count("done") == 1
    progress.update(PrefillEvent(2, 1, 1, 4.0))
    assert progress.slots == [2, 1]


def test_more_requests_than_slots_is_shown_not_a_crash():
    progress = BatchProgress([Prompt("a")] * 2, batch_size=1, start_s=0.0)
    progress.update(PrefillEvent(0, 1, 1, 1.0))
    progress.update(PrefillEvent(1, 1, 2, 2.0))
    assert progress.slots == [0, 1]


def test_released_text_without_a_token_is_text_but_not_a_token():
    progress = BatchProgress([Prompt("a")], batch_size=1, start_s=0.0)
    progress.update(TokenEvent(0, 4, "hel", 1.0))
    progress.update(TokenEvent(0, None, "lo", 1.5))
    outcome = progress.requests[0].outcome()
    assert outcome.text == "hello" and outcome.timing.token_s == (1.0,)


def busy():
    """One request decodes, one is in prefill, a slot is free and two requests wait."""
    prompts = [Prompt("a", SamplingParams(max_tokens=8))] * 4
    progress = BatchProgress(prompts, batch_size=3, start_s=0.0)
    for event in (
        PrefillEvent(0, 9, 9, 1.0),
        TokenEvent(0, 1, "once\nupon ", 1.0),
        TokenEvent(0, 2, "a", 2.0),
        PrefillEvent(2, 128, 512, 3.0),
    ):
        progress.update(event)
    return progress


def shown(progress, width):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(batch_report.render(progress, now_s=3.0, width=width))
    return console.export_text().splitlines()


def test_the_live_view_has_a_row_per_slot():
    lines = shown(busy(), 100)
    assert "decode" in lines[1] and "2/8" in lines[1] and "once upon a" in lines[1]
    assert "prefill" in lines[2] and "128/512" in lines[2]
    assert "free" in lines[3]
    assert lines[4].startswith("queue 2 · done 0/4 · 2 tokens")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_live_view_cuts_no_number(width):
    lines = shown(busy(), width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text
    assert {"slot", "prompt", "phase", "tokens"} <= set(lines[0].split())
    assert "2/8" in lines[1].split() and "128/512" in lines[2].split()
    assert ("once upon a" in text) == (width >= 80)


def test_markup_in_an_answer_is_shown_as_it_is():
    progress = BatchProgress([Prompt("a")], batch_size=1, start_s=0.0)
    progress.update(TokenEvent(0, 1, "[/red] [bold]", 1.0))
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(batch_report.render(progress, now_s=2.0, width=100))
    assert "[/red] [bold]" in console.export_text()


# `batch-main --engine` with `--itl-slo-ms` or `--speculate`: what reaches the engine, what is refused


def test_the_slo_reaches_the_engine():
    settings = engine_settings(parse(batch_main, "--engine", "--itl-slo-ms", "50"), limit=1024)
    assert settings is not None and settings.changed()["itl_slo_ms"] == 50
    ref, checkpoint = load_solution("ref"), toy_checkpoint()
    loaded = Loaded(checkpoint, ref, ref.build_model(checkpoint))
    engine = build_engine(load_serving("ref"), loaded, settings, num_requests=1)
    assert engine.core.options.budget_controller.policy.itl_slo_s == 0.05


def test_looked_up_drafts_are_longer_than_those_of_a_model_unless_told():
    llm = SimpleNamespace(
        NgramProposer=lambda num_tokens: num_tokens,
        DraftModelProposer=lambda model, num_tokens, vocab_size: num_tokens,
        DraftGate=object,
        Engine=lambda *given: given[-1].proposer,
    )
    ref, checkpoint = load_solution("ref"), toy_checkpoint()
    model = ref.build_model(checkpoint)
    loaded = Loaded(checkpoint, ref, model)

    def length(*flags, draft=None):
        settings = engine_settings(parse(batch_main, "--engine", *flags), limit=1000)
        assert settings is not None
        return build_engine(llm, loaded, settings, draft=draft)

    three = ("--num-speculative-tokens", "3")
    looked_up, drafted = ("--speculate", "ngram"), ("--speculate", "draft:default")
    assert (length(*looked_up), length(*looked_up, *three)) == (8, 3)
    assert (length(*drafted, draft=model), length(*drafted, *three, draft=model)) == (4, 3)
    assert length() is None


def test_an_slo_changes_no_answer(kernels_on, toy, capsys):
    texts = []
    for flags in ([], ["--itl-slo-ms", "0.001"], ["--itl-slo-ms", "100", "--block-size", "8"]):
        argv = ["batch-main", "--engine", "--max-tokens", "6", "--ignore-eos", "--json", *flags]
        assert cli.main(argv) == 0
        texts.append([request["text"] for request in json.loads(capsys.readouterr().out)["requests"]])
    assert texts[0] == texts[1] == texts[2] and all(texts[0])


@pytest.mark.parametrize("flags", [["--chunk-grid", "0"], ["--enable-chunked-prefill"]])
def test_flags_that_ask_for_free_chunks_fit(flags):
    assert engine_settings(parse(batch_main, "--engine", "--itl-slo-ms", "50", *flags), limit=1024)


# Files of prompts: what they may hold, and one line for all they may not


def read(tmp_path, name, text, sampling=None):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_prompts(str(path), sampling or SamplingParams())


def test_plain_lines_skip_blank_ones_and_draw_apart(tmp_path):
    prompts = read(tmp_path, "p.txt", "a\n\n  \nb c\n", SamplingParams(seed=5))
    assert [(prompt.content, prompt.sampling.seed) for prompt in prompts] == [("a", 5), ("b c", 6)]


@pytest.mark.parametrize("name", ["p.json", "p.jsonl"])
def test_objects_override_the_flags(tmp_path, name):
    entries = ["plain", {"prompt": "b", "max_tokens": 3, "stop": "x", "seed": 9, "arrival_s": 0.5}]
    entries.append({"prompt": "c", "priority": 2, "priority_class": "batch"})
    text = json.dumps(entries) if name == "p.json" else "\n".join(map(json.dumps, entries))
    plain, full, batch = read(tmp_path, name, text, SamplingParams(max_tokens=7))
    assert plain.sampling.max_tokens == 7
    assert full == Prompt("b", SamplingParams(max_tokens=3, stop=("x",), seed=9), 0.5)
    assert (batch.priority, batch.priority_class == "batch") == (2, True)


def test_stdin_may_be_json_or_lines(monkeypatch):
    for text in ('["a", "b"]', "a\nb\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert [prompt.content for prompt in read_prompts("-", SamplingParams())] == ["a", "b"]


LINE_SEPARATORS = "a\u2028b\u0085c\x0bd"


@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.txt"])
def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_no_text(tmp_path, name):
    # json.dumps leaves them as they are with ensure_ascii=False, as other languages do always.
    entry = LINE_SEPARATORS if name == "p.txt" else json.dumps(LINE_SEPARATORS, ensure_ascii=False)
    text = f"[{entry}, {entry}]" if name == "p.json" else f"{entry}\n{entry}\n"
    prompts = read(tmp_path, name, "\ufeff" + text)
    assert [prompt.content for prompt in prompts] == [LINE_SEPARATORS] * 2


def test_blanks_around_a_prompt_go_unless_it_is_raw(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('["  a ", {"prompt": " "}]')
    for raw, contents in ((False, ["a", ""]), (True, ["  a ", ""])):
        assert [each.content for each in read_prompts(str(path), SamplingParams(), raw)] == contents


def test_after_the_last_seed_comes_the_first(tmp_path):
    prompts = read(tmp_path, "p.txt", "a\nb\n", SamplingParams(seed=2**64 - 1))
    assert [prompt.sampling.seed for prompt in prompts] == [2**64 - 1, 0]


BAD_FILES = [
    ("p.json", '[{"prompt": "a", "seed": -1}]', "entry 0: seed must be 0 to 2**64 - 1"),
    ("p.json", '["a", "b\\ud83d"]', "entry 1: it is not UTF-8 text"),
    ("p.json", "[1,", "not JSON at line 1"),
    ("p.json", "{}", "expected a JSON list"),
    ("p.json", "[" * 100_000, "nested too deeply"),
    ("p.json", "[]", "is empty: write one"),
    ("p.txt", "\n\n", "is empty: write one"),
    ("p.json", "[1]", 'entry 0: expected a string or an object with a string "prompt"'),
    ("p.json", '["a", {"prompt": 3}]', "entry 1: expected a string"),
    ("p.json", '[{"prompt": "a", "maxtokens": 1}]', "unknown field 'maxtokens'"),
    ("p.json", '[{"prompt": "a", "arrival_s": -1}]', "arrival_s must be 0 or more"),
    ("p.json", '[{"prompt": "a", "arrival_s": Infinity}]', "arrival_s must be 0 or more"),
    ("p.jsonl", '"a"\n\n{"prompt"', "not JSON at line 3"),
]


@pytest.mark.parametrize(("name", "text", "complaint"), BAD_FILES)
def test_a_bad_file_is_one_line(tmp_path, name, text, complaint):
    with pytest.raises(UserError) as caught:
        read(tmp_path, name, text)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe")
    for path, complaint in ((tmp_path / "no.txt", "No such file"), (tmp_path / "p.txt", "not UTF-8")):
        with pytest.raises(UserError, match=complaint):
            read_prompts(str(path), SamplingParams())

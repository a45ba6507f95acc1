"""`main`: one answer on stdout, everything else on stderr."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.fake_serving import FakeSolution, WordTokenizer, loaded, parse

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli import main
from tiny_llm_lab.measure.corpus.question import QUESTION
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.sampling_options import sampling_from_args


@pytest.fixture
def solution(monkeypatch):
    fake = FakeSolution()
    monkeypatch.setattr(main.model_options, "load_from_args", lambda *_, **__: loaded(fake, limit=50))
    return fake


def test_the_answer_alone_is_on_stdout(solution, capsys):
    assert cli.main(["main"]) == 0
    out, err = capsys.readouterr()
    assert out == "one two three \n"
    assert QUESTION in err
    assert all(each in err for each in ("answer 3 tokens", "TTFT", "tok/s", "next: ./pdmw run batch-main"))


def test_a_given_prompt_is_not_repeated(solution, capsys):
    assert cli.main(["main", "--prompt", "what is this"]) == 0
    assert solution.seen == ["what is this"]
    assert "what is this" not in capsys.readouterr().err


def test_prompt_from_stdin(solution, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    assert cli.main(["main", "--prompt", "-"]) == 0
    assert solution.seen == ["from a pipe"]


BAD_INPUT = [
    (["--prompt", "word " * 51], "the prompt has 51 tokens and the model takes 50"),
    (["--loop", "simple"], "this solution has no simple_generate"),
]


@pytest.mark.parametrize(("argv", "complaint"), BAD_INPUT)
def test_bad_input_is_one_line(solution, capsys, argv, complaint):
    assert cli.main(["main", *argv]) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == "" and last.startswith("error: ") and complaint in last


def test_blanks_around_a_prompt_go_unless_it_is_raw(solution, monkeypatch):
    for raw, seen in (((), "what is"), (("--raw",), "  what is ")):
        assert cli.main(["main", "--prompt", "  what is ", *raw]) == 0
        assert solution.seen == [seen]
        monkeypatch.setattr(sys, "stdin", io.StringIO("  what is \n"))
        assert cli.main(["main", "--prompt", "-", *raw]) == 0
        assert solution.seen == [seen]


def test_stop_strings_and_ignore_eos_reach_the_loop(monkeypatch):
    args = parse(main, "--stop", "END", "--stop", "\n", "--ignore-eos")
    sampling = sampling_from_args(args)
    assert (sampling.stop, sampling.ignore_eos) == (("END", "\n"), True)


def test_the_first_loops_know_no_stop_strings(monkeypatch, capsys):
    fake = FakeSolution()
    fake.simple_generate = None
    monkeypatch.setattr(main.model_options, "load_from_args", lambda *_, **__: loaded(fake))
    assert cli.main(["main", "--loop", "simple", "--stop", "END"]) == 2
    assert "--stop and --ignore-eos do not work with --loop simple" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["main", "batch-main"])
def test_a_step_ahead_is_chosen_by_hand(monkeypatch, command):
    fake = FakeSolution()
    monkeypatch.setattr(main.model_options, "load_from_args", lambda *_, **__: loaded(fake))
    for flags, chosen in ((("--async-scheduling",), True), (("--no-async-scheduling",), False), ((), None)):
        assert cli.main([command, *flags]) == 0
        assert fake.settings.get("async_scheduling") is chosen


def test_ctrl_c_keeps_what_was_said(solution, capsys):
    solution.fail_after = 3  # the prefill and two tokens
    assert cli.main(["main"]) == 130
    out, err = capsys.readouterr()
    assert out == "one two \n"
    assert "interrupted" in err and "answer 2 tokens" in err


def test_an_unwritten_task_is_one_line(solution, capsys):
    solution.fail_after, solution.failure = 1, NotImplementedError("task 2.7.1")
    assert cli.main(["main"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("TODO 2.7.1: write ") and "--solution ref" in last


def test_other_not_implemented_errors_are_not_hidden(solution):
    solution.fail_after, solution.failure = 1, NotImplementedError("my own mistake")
    with pytest.raises(NotImplementedError, match="my own mistake"):
        cli.main(["main"])


@pytest.mark.parametrize("loop", main.LOOPS)
def test_every_loop_gets_the_sampling_settings(loop, monkeypatch):
    solution = FakeSolution(words=["hi"])
    made = []
    limits = []

    def generate(*arguments, max_tokens):
        limits.append(max_tokens)
        return solution.stream_generate(None, WordTokenizer(), "a", None)

    solution.Sampler = made.append
    solution.simple_generate = solution.simple_generate_with_kv_cache = generate
    monkeypatch.setattr(main.model_options, "load_from_args", lambda *_, **__: loaded(solution))
    flags = ["--temperature", "0.5", "--top-p", "0.9", "--top-k", "7", "--min-p", "0.1", "--seed", "3"]
    assert cli.main(["main", "--loop", loop, "--max-tokens", "9", *flags]) == 0
    if loop != "chunked":
        (asked,) = made
        got = (asked.temperature, asked.top_p, asked.top_k, asked.min_p, asked.seed)
        assert got == (0.5, 0.9, 7, 0.1, 3) and limits == [9]


def test_the_chat_template_is_applied_unless_raw_or_missing():
    class Templated(WordTokenizer):
        has_chat_template = True

        def apply_chat_template(self, messages, **options):
            assert options["add_generation_prompt"] and options["tokenize"] is False
            assert options["enable_thinking"] is False
            return f"<{messages[0]['role']}>{messages[0]['content']}<assistant>"

    templated = Templated()
    plain = WordTokenizer()
    assert as_chat(templated, "hi") == "<user>hi<assistant>"
    assert as_chat(templated, "hi", raw=True) == "hi"
    assert as_chat(templated, "") == ""
    assert as_chat(plain, "hi") == "hi"


def test_defaults_are_those_of_the_book():
    args = parse(main)
    assert (args.model, args.solution, args.loop, args.prefill_step) == ("default", "ref", "chunked", 128)


def test_end_to_end_a_reader_that_leaves_is_not_a_crash():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tiny_llm_lab", "main", "--prompt", "Hello", "--max-tokens", "16"]
    env = os.environ | {"PYTHONPATH": str(root / "src")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=root
    ) as child:
        assert child.stdout and child.stderr
        child.stdout.close()
        said = child.stderr.read()
    assert "Traceback" not in said and "Exception ignored" not in said

"""Ranks on this machine: how they start, find each other and end, and what commands make of them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.helpers import rank
from tests.helpers.processes import finished

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.runtime import native, ranks
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

# Longer than any of these takes on a machine that is busy.
TIMEOUT_S = 240
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def python(code):
    return [sys.executable, "-c", code]


def test_every_rank_learns_who_it_is(tmp_path):
    code = (
        f"import os; n = os.environ['MLX_RANK']; open({str(tmp_path)!r} + '/' + n, 'w').write(os.environ["
        f"{native.THREADS_VARIABLE!r}]); print(open(os.environ['MLX_HOSTFILE']).read())"
    )
    assert ranks.launch(python(code), 3, TIMEOUT_S) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    assert int((tmp_path / "0").read_text()) >= 1


def test_one_failure_ends_all(capfd):
    code = (
        "import os, sys, time\n"
        "if os.environ['MLX_RANK'] == '1': print('no luck', file=sys.stderr); sys.exit(7)\n"
        "time.sleep(1000)"
    )
    assert ranks.launch(python(code), 2, TIMEOUT_S) == 7
    assert capfd.readouterr().err == "no luck\n"


def test_the_same_failure_is_said_once(capfd):
    # Whoever is first, rank 0 is not ended between its words and its end.
    code = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.exit('no luck')"
    assert ranks.launch(python(code), 3, TIMEOUT_S) == 1
    assert capfd.readouterr().err.count("no luck") == 1


def test_a_command_that_takes_long_to_end_has_said_its_error(capfd):
    code = (
        "import atexit, os, sys, time\n"
        "from tiny_llm_lab.cli import dispatch as cli\n"
        "if os.environ['MLX_RANK'] == '0': atexit.register(time.sleep, 2)\n"
        "sys.exit(cli.main(['main', '-tp', '0']))"
    )
    assert ranks.launch(python(code), 2, TIMEOUT_S) == EXIT_USAGE
    assert capfd.readouterr().err.count("error: ") == 1


def test_nobody_waits_forever():
    begin = time.monotonic()
    assert ranks.launch(python("import time; time.sleep(1000)"), 2, timeout_s=0.2) == 124
    assert time.monotonic() - begin < TIMEOUT_S


@pytest.mark.parametrize("name", ["default", "random:qwen3-moe-shrunk,bits=8"])
def test_ranks_on_the_kernels_say_what_one_process_says(name, ranks_of):
    checkpoint, llm = load_checkpoint(name, dtype="float32"), load_solution("ref")
    want = rank.of_model(llm, llm.build_model(checkpoint), checkpoint.tokenizer, name)
    rank.check_answers(ranks_of(2).answers(name, kernels="cpp"), want)


def command_says(*argv, stdin="Where is the key?"):
    return finished(
        [sys.executable, "-m", "tiny_llm_lab", *argv], input=stdin, timeout=TIMEOUT_S, env=ENVIRONMENT
    )


@pytest.mark.long
def test_main_says_the_same_on_two_ranks():
    one, two = (
        command_says("main", "--prompt", "-", "--max-tokens", "12", "-tp", size, "--dtype", "float32")
        for size in ("1", "2")
    )
    assert (two.returncode, two.stderr.count("TTFT")) == (0, 1)
    assert two.stdout == one.stdout


@pytest.mark.long
def test_batch_main_says_the_same_on_two_ranks():
    # An empty prompt fails alone: neither rank takes the other with it.
    prompts = json.dumps(["Who are you?", "", {"prompt": "Who are you, again?", "temperature": 0.8}])
    flags = ("--prompts", "-", "--json", "--engine", "--max-num-seqs", "2", "--max-num-batched-tokens", "8")
    one, two = (
        command_says("batch-main", *flags, "--max-tokens", "12", "--dtype", "float32", *size, stdin=prompts)
        for size in ((), ("-tp", "2"))
    )
    assert (one.returncode, two.returncode) == (EXIT_FAILED, EXIT_FAILED), two.stderr
    alone, shared = (json.loads(each.stdout) for each in (one, two))
    assert [each["status"] for each in shared["requests"]] == ["length", "error", "length"]
    assert [each["text"] for each in shared["requests"]] == [each["text"] for each in alone["requests"]]
    assert shared["engine"] == alone["engine"]
    # Clocks and free memory may differ from rank to rank, so that ranks ask neither.
    fixed = {"tensor_parallel_size": 2, "draft_gate": False, "kv_cache_memory": "1G"}
    assert shared["settings"] == alone["settings"] | fixed


@pytest.fixture
def heeds_ctrl_c():
    """A shell lets what it starts in the background ignore Ctrl-C, and all that this starts in turn."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.long
@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_still_prints_what_there_is(tmp_path):
    source = tmp_path / "prompts.json"
    source.write_text('[{"prompt": "Tell me a story.", "ignore_eos": true, "max_tokens": 4000}]')
    argv = ["batch-main", "--engine", "-tp", "2", "--prompts", str(source), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tiny_llm_lab", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,  # a terminal interrupts all processes of a command, and no others
    )
    try:
        assert process.stderr is not None
        assert any("prefilled" in line for line in process.stderr), "it ended before it began"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == EXIT_INTERRUPTED, err
    assert [each["status"] for each in json.loads(out)["requests"]] == ["interrupted"]


BAD_USE = [
    (["main", "-tp", "0"], "--tensor-parallel-size must be 1 or more, not 0"),
    (["main", "-tp", "2", "--solution", "mlx-lm"], "this solution does not define build_parallel_model"),
    (["batch-main", "-tp", "2", "--prompts", "-"], "arrival_s follows a clock, and each rank has its"),
    (["batch-main", "-tp", "2", "--engine", "--itl-slo-ms", "50"], "set --max-num-batched-tokens instead"),
    (["batch-main", "-tp", "2", "--engine", "--kv-cache-memory", "0.5"], "give a size, such as 512M"),
]


@pytest.mark.parametrize(("argv", "line"), BAD_USE)
def test_bad_use_is_one_line(argv, line):
    found = command_says(*argv, "--max-tokens", "2", stdin='[{"prompt": "Later", "arrival_s": 1}]')
    assert found.returncode == EXIT_USAGE
    assert found.stderr.count("error: ") == 1 and line in found.stderr


def test_heads_are_looked_at_before_a_process_starts(monkeypatch, capsys):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(ranks, "launch", lambda *_, **__: pytest.fail("processes were started"))
    for size in ("3", "64"):
        assert cli.main(["main", "-tp", size]) == EXIT_USAGE
        line = f"--tensor-parallel-size {size} cannot split default of 4 query and 2 kv heads"
        assert capsys.readouterr().err == f"error: {line}: choose one of 1, 2, 4\n"


def test_there_are_no_more_ranks_than_cores(monkeypatch, capsys):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(ranks, "launch", lambda *_, **__: pytest.fail("processes were started"))
    for command in ("main", "batch-main"):
        assert cli.main([command, "-tp", "1000"]) == EXIT_USAGE
        line = "--tensor-parallel-size 1000 is more than the 2 cores here: choose fewer"
        assert capsys.readouterr().err == f"error: {line}\n"


def test_what_rank_0_has_said_is_not_said_again(capfd):
    # Rank 1 fails first; rank 0 fails in the same way when it is told to end.
    code = (
        "import os, signal, sys, time\n"
        "def end(*_): sys.exit('no luck')\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "if os.environ['MLX_RANK'] == '1': time.sleep(0.3); end()\n"
        "time.sleep(1000)"
    )
    assert ranks.launch(python(code), 2, TIMEOUT_S) == 1
    assert capfd.readouterr().err.count("no luck") == 1

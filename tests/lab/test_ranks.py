"""Ranks on this machine: how they start, find each other and end, and what `main` makes of them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers import rank
from tests.helpers.tolerance import EXACT, F32_MODEL, assert_close

from tiny_llm_lab import cli, load_checkpoint, load_solution, native, ranks

# Longer than any of these takes on a machine that is busy.
TIMEOUT_S = 240


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_every_rank_learns_who_it_is(tmp_path: Path) -> None:
    code = (
        f"import os; n = os.environ['MLX_RANK']; open({str(tmp_path)!r} + '/' + n, 'w').write(os.environ["
        f"{native.THREADS_VARIABLE!r}]); print(open(os.environ['MLX_HOSTFILE']).read())"
    )
    assert ranks.launch(python(code), 3, TIMEOUT_S) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    assert int((tmp_path / "0").read_text()) >= 1


def test_one_failure_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, sys, time\n"
        "if os.environ['MLX_RANK'] == '1': print('no luck', file=sys.stderr); sys.exit(7)\n"
        "time.sleep(1000)"
    )
    assert ranks.launch(python(code), 2, TIMEOUT_S) == 7
    assert capfd.readouterr().err == "no luck\n"


def test_the_same_failure_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert ranks.launch(python("import sys; sys.exit('no luck')"), 3, TIMEOUT_S) == 1
    assert capfd.readouterr().err.count("no luck") == 1


def test_nobody_waits_forever() -> None:
    begin = time.monotonic()
    assert ranks.launch(python("import time; time.sleep(1000)"), 2, timeout_s=0.2) == 124
    assert time.monotonic() - begin < TIMEOUT_S


@pytest.mark.parametrize("name", ["default", "random:qwen3-moe-shrunk,bits=8"])
def test_ranks_on_the_kernels_say_what_one_process_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, llm = load_checkpoint(name, dtype="float32"), load_solution("ref")
    want = rank.of_model(llm, llm.build_model(checkpoint), checkpoint.tokenizer)
    monkeypatch.setenv(native.VARIABLE, "on")
    found = rank.answers("ref", name, 2, tmp_path)
    for number, got in enumerate(found):
        assert got["tokens"].tolist() == want["tokens"].tolist(), f"greedy tokens of rank {number}"
        assert_close(got["logits"], want["logits"], F32_MODEL, legend="[L, V]", what=f"rank {number}")
        assert_close(got["logits"], found[0]["logits"], EXACT, what=f"rank {number} beside rank 0")


def main_says(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tiny_llm_lab", "main", *argv],
        input="Where is the key?",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_main_says_the_same_on_two_ranks() -> None:
    one, two = (
        main_says("--prompt", "-", "--max-tokens", "12", "-tp", size, "--dtype", "float32")
        for size in ("1", "2")
    )
    assert (two.returncode, two.stderr.count("TTFT")) == (0, 1)
    assert two.stdout == one.stdout


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["-tp", "0"], "--tensor-parallel-size must be 1 or more, not 0"),
        (["-tp", "2", "--solution", "mlx-lm"], "this solution has no build_parallel_model"),
    ],
)
def test_bad_use_is_one_line(argv: list[str], line: str) -> None:
    found = main_says("--max-tokens", "2", *argv)
    assert found.returncode == cli.EXIT_USAGE
    assert found.stderr.count("error: ") == 1 and line in found.stderr

"""The engine itself, sound, rounded and with a wrong mask; the table, and what is refused."""

import json

import mlx.core as mx
import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.diverge import command
from tiny_llm_lab.measure.diverge.side import side_args
from tiny_llm_lab.runtime.console.tables import table_lines
from tiny_llm_lab.types import UserError
from tiny_llm_ref.layers import attention

Capture = pytest.CaptureFixture[str]


def test_the_table_fits_80_columns():
    row = [
        "63",
        "131072",
        "512",
        "131583",
        '"123456…"',
        '"123456…"',
        "1.2e-05",
        "1.2e-05",
        "1.2e-05",
        "rounding",
    ]
    lines = table_lines(command.COLUMNS, [row], 80)
    assert max(map(len, lines)) <= 80 and lines[2].split()[0] == "63"
    assert {"131583", "rounding"} <= set(lines[2].split())


@pytest.mark.usefixtures("kernels_on")
def test_chunks_are_the_same_to_the_bit(prompts, capsys, tmp_path):
    file = tmp_path / "steps.json"
    flags = "--max-num-batched-tokens 24 --max-num-seqs 2"
    assert cli.main(["diverge", "--b", flags, *prompts, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "prompt 0: same (every bit)" in out and "prompt 1: same (every bit)" in out
    written = json.loads(file.read_text())["prompts"]
    assert [each["verdict"] for each in written] == ["same", "same"]
    assert all(step["difference"] == 0 and step["margin"] > 0 for each in written for step in each["steps"])


@pytest.mark.usefixtures("kernels_on")
def test_int8_keys_and_values_are_rounding(prompts, capsys):
    assert cli.main(["diverge", "--b", "--kv-cache-dtype int8", *prompts]) == 0
    said = capsys.readouterr().out
    assert said.count(": rounding (") == 2 and "limit: 0.05" in said


def test_a_planted_wrong_mask_is_a_bug(prompts, capsys, monkeypatch):
    """B's triangle begins at the left, so later chunks see too little; A's is right."""
    follow, right = command.follow, attention.causal_mask

    def wrong(rows, columns, dtype):
        mask = mx.tril(mx.ones((rows, columns), mx.bool_))
        return (
            mx.where(mask, mx.array(0, dtype), mx.array(-mx.inf, dtype))
            if rows > 1
            else right(rows, columns, dtype)
        )

    def with_wrong_mask(engine, given, a):
        monkeypatch.setattr(attention, "causal_mask", wrong)
        return follow(engine, given, a)

    sides = ["--a", "--kernels off", "--b", "--kernels off --max-num-batched-tokens 24 --max-num-seqs 2"]
    assert cli.main(["diverge", *sides, *prompts]) == 0
    assert "bug" not in capsys.readouterr().out
    monkeypatch.setattr(command, "follow", with_wrong_mask)
    assert cli.main(["diverge", *sides, *prompts]) == 1
    assert "prompt 1: bug (step 0 differs by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "one of the arguments --b --b-url is required"),
        (["--b=--banana"], "error: --b: unrecognized arguments: --banana: it takes serve's flags"),
        (["--b", "'"], "error: --b: No closing quotation: close the quotation"),
        (["--b", "", "--max-tokens", "513"], "--max-tokens may be 512 at most, not 513"),
        (["--b", "", "--b-model", "x"], "add --b-url"),
        (["--b", "", "--tolerance", "0"], "must be above 0"),
    ],
)
def test_what_is_refused(flags, said, capsys):
    assert cli.main(["diverge", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_too_many_prompts_are_refused(tmp_path, capsys):
    file = tmp_path / "many.txt"
    file.write_text("Hello\n" * 65)
    assert cli.main(["diverge", "--b", "", "--prompts", str(file)]) == 2
    assert "has 65 prompts: give 64 at most" in capsys.readouterr().err


def test_sides_take_the_flags_of_serve():
    args = side_args("--max-num-seqs 3 --kernels mlx", "--a")
    assert (args.max_num_seqs, args.kernels) == (3, "mlx")
    with pytest.raises(UserError, match=r"--a: .*invalid choice"):
        side_args("--kernels fast", "--a")

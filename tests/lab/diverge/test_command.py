"""The engine itself, sound, rounded and with a wrong mask; the table, and what is refused."""

import json
import random
from types import SimpleNamespace
from typing import cast

import httpx2
import mlx.core as mx
import numpy as np
import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.diverge import command, compare
from tiny_llm_lab.measure.diverge.command import Server
from tiny_llm_lab.runtime.console.tables import table_lines
from tiny_llm_lab.types import Tokenizer, UserError
from tiny_llm_ref.layers import attention


def test_the_table_fits_80_columns():
    row = '63 131072 512 131583 "123456…" "123456…" 1.2e-05 1.2e-05 1.2e-05 rounding'.split()
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
def test_a_grid_of_chunks_has_a_line_for_each(prompts, capsys):
    assert cli.main(["diverge", "--grid", *prompts]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and all(line.endswith("--max-num-seqs 8: 2 same") for line in lines)


@pytest.mark.usefixtures("kernels_on")
def test_int8_keys_and_values_are_rounding(prompts, capsys):
    assert cli.main(["diverge", "--b", "--kv-cache-dtype int8", *prompts]) == 0
    said = capsys.readouterr().out
    assert said.count(": rounding (") == 2 and "limit: 0.05" in said


def test_a_planted_wrong_mask_is_a_bug(prompts, capsys, monkeypatch, tmp_path):
    """B's triangle begins at the left, so later chunks see too little; A's is right."""
    follow, right = compare.follow, attention.causal_mask

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
    monkeypatch.setattr(compare, "follow", with_wrong_mask)
    assert cli.main(["diverge", *sides, *prompts]) == 1
    assert "prompt 1: bug (step 0 differs by" in capsys.readouterr().out
    file = tmp_path / "steps.json"
    assert cli.main(["diverge", "--grid", "--a", "--kernels off", *prompts, "--json", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    written = json.loads(file.read_text())["prompts"]
    assert [each["number"] for each in written] == [0, 1] * 9
    assert [each["flags"] for each in written[::2]] == [line.partition(": ")[0] for line in lines[:9]]
    bugs = [each for each in written if each["verdict"] == "bug"]
    # Only chunks of 7 tokens divide the short prompt, so its number is not that of its place.
    assert {each["flags"].split()[5] for each in bugs if each["number"] == 0} == {"7"}
    wanted = [f"prompt {each['number']}: bug ({each['reason']}) with {each['flags']}" for each in bugs]
    assert [line for line in lines if line.startswith("prompt ") and ": bug (" in line] == wanted


def test_too_many_prompts_are_refused(tmp_path, capsys):
    file = tmp_path / "many.txt"
    file.write_text("Hello\n" * 65)
    assert cli.main(["diverge", "--b", "", "--prompts", str(file)]) == 2
    assert "has 65 prompts: give 64 at most" in capsys.readouterr().err


def test_sides_take_the_flags_of_serve():
    args = compare.side_args("--max-num-seqs 3 --kernels mlx", "--a")
    assert (args.max_num_seqs, args.kernels) == (3, "mlx")
    with pytest.raises(UserError, match=r"--a: .*invalid choice"):
        compare.side_args("--kernels fast", "--a")


# A server as side B


class FakeServer:
    """Scores as A does, from A's own recorded logits, plus `error` on one token of each answer."""

    def __init__(self, monkeypatch, error, echo=True):
        self.recorded = []
        self.bodies = []
        self.error, self.echo, record = error, echo, compare.record

        def keep(engine, given):
            self.recorded = record(engine, given)
            return self.recorded

        monkeypatch.setattr(compare, "record", keep)
        transport = httpx2.MockTransport(self.answer)
        monkeypatch.setattr(command, "Server", lambda url, model: Server(url, model or "m", transport))

    def answer(self, request):
        body = json.loads(request.content)
        a = self.recorded[len(self.bodies)]
        self.bodies.append(body)
        own = [None] * len(a.prompt)
        for token, logits in a.steps():
            own.append(float(logits[token] - np.log(np.exp(logits.astype(np.float64)).sum())))
        own[len(a.prompt) + 2] = (own[len(a.prompt) + 2] or 0.0) - self.error
        logprobs = {"token_logprobs": [*own, -1.0], "top_logprobs": [None] * len(own) + [{}]}
        return httpx2.Response(200, json={"choices": [{"logprobs": logprobs if self.echo else None}]})


ANSWERS = [(0.02, 0, "same (every token)"), (3.0, 1, "bug (step 2")]


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize(("error", "code", "said"), ANSWERS)
def test_a_server_that_scores(error, code, said, prompts, capsys, monkeypatch):
    server = FakeServer(monkeypatch, error)
    assert cli.main(["diverge", "--b-url", "http://fake", *prompts]) == code
    assert capsys.readouterr().out.count(said) == 2
    for body, a in zip(server.bodies, server.recorded, strict=True):
        assert body["prompt"] == [*a.prompt, *(token for token, _ in a.steps())] and body["echo"]
    assert compare.COARSE_LIMIT * 10 < 3


@pytest.mark.parametrize(("margin", "verdict"), [(0.1, "rounding"), (2.0, "bug")])
def test_a_server_that_would_say_something_else(margin, verdict):
    """It prefers a token of its own by a little: rounding only where A nearly did, too."""
    letters = cast(Tokenizer, SimpleNamespace(decode=lambda ids: chr(ord("a") + ids[0])))
    logits = np.array([10, 10 - margin, *[-10] * 10], np.float32)
    own, second = logits[:2] - np.log(np.exp(logits.astype(np.float64)).sum())
    a = compare.Recorded([1, 2], {(): logits})
    served = [compare.ServedStep(float(own), {"a": float(own), "z": float(own) + 0.01})]
    result = compare.compare_served(a, served, letters, compare.COARSE_LIMIT)
    assert (result.steps[0].token_b, result.judgement.at, result.judgement.verdict) == ("z", 0, verdict)
    served = [compare.ServedStep(float(own), {"a": float(own), "b": float(second) - 0.3})]
    result = compare.compare_served(a, served, letters, compare.COARSE_LIMIT)
    assert result.steps[0].difference == pytest.approx(0.3, abs=1e-5) and result.judgement.verdict == "same"


def test_parts_of_characters_are_not_compared_by_their_text():
    """Several tokens are U+FFFD: a server's may be another one than ours."""
    parts = cast(Tokenizer, SimpleNamespace(decode=lambda ids: "\ufffd" if ids[0] < 3 else chr(ids[0])))
    logits = np.array([9, 8, 2, 1, *[-10] * 10], np.float32)
    logprobs = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    a = compare.Recorded([1, 2], {(): logits})
    for text, other in (("\ufffd", logprobs[2]), ("bytes:\\xe4", logprobs[1]), ("\3", logprobs[3])):
        served = [compare.ServedStep(float(logprobs[0]), {text: float(other)})]
        result = compare.compare_served(a, served, parts, compare.COARSE_LIMIT)
        assert (result.judgement.verdict, result.steps[0].difference < 1e-5) == ("same", True), text


@pytest.mark.usefixtures("kernels_on")
def test_a_server_without_echo_is_one_line(prompts, capsys, monkeypatch):
    FakeServer(monkeypatch, 0.0, echo=False)
    assert cli.main(["diverge", "--b-url", "http://fake", *prompts]) == 2
    assert "it must take echo and logprobs" in capsys.readouterr().err.splitlines()[-1]


# The rule on made-up runs, whose verdict is known from how they were made


V, TOLERANCE = 12, 0.01


def two_runs(a, noise):
    """A's logits of each step, and what B adds to them."""
    sides, answer = (compare.Recorded([1]), compare.Recorded([1])), tuple[int, ...]()
    for logits, added in zip(a, noise, strict=True):
        sides[0].by_answer[answer], sides[1].by_answer[answer] = logits, logits + added
        answer += (int(logits.argmax()),)
    return compare.compare(*sides, TOLERANCE).judgement


def a_run(rng, margins):
    """Logits of size 10 whose best two differ by the margin of each step."""
    steps = []
    for margin in margins:
        logits = rng.uniform(-10, 5, V).astype(np.float32)
        first, second = rng.choice(V, 2, replace=False)
        logits[first], logits[second] = 10, 10 - margin
        steps.append(logits)
    return steps


def test_the_rule_on_random_runs():
    """The verdict worked out from how the runs were made, and not from what the code computes."""
    draw, seen = random.Random(3), set()
    for number in range(300):
        rng, last = np.random.default_rng(number), draw.randrange(1, 8)
        kind = draw.choice(["none", "noise", "tie", "large", "jump"])
        size = 0.0 if kind == "none" else 0.001
        margins = [1.0] * 8
        if kind in ("tie", "jump"):
            margins[last] = {"tie": 0.0012, "jump": 0.1}[kind]
        a = a_run(rng, margins)
        noise = [rng.uniform(0.5, 1, V).astype(np.float32) * size * rng.choice([-1, 1], V) for _ in a]
        second, first = np.argsort(a[last])[-2:]
        if kind in ("tie", "jump"):  # the best two change places
            push = margins[last] * 0.8
            noise[last][first], noise[last][second] = -push, push
        if kind == "large":
            noise[last][rng.integers(V)] += 0.3
        judged = two_runs(a, [each.astype(np.float32) for each in noise])
        want = {"none": "same", "noise": "rounding", "tie": "rounding", "large": "bug", "jump": "bug"}[kind]
        assert judged.verdict == want, (number, kind, judged)
        assert judged.at == (last if kind in ("tie", "jump") else None) or kind == "large"
        seen.add(kind)
    assert len(seen) == 5


def test_the_border_of_a_margin():
    """2 * JUMP times what was seen before is still rounding, and a little more is not."""
    before = 0.004
    for factor, want in ((0.98, "rounding"), (1.02, "bug")):
        margin = 2 * compare.JUMP * before * factor
        a = [np.array([10, 1], np.float32), np.array([10, 10 - margin], np.float32)]
        push = margin / 2 + 0.0005
        noise = [np.array([before, 0], np.float32), np.array([-push, push], np.float32)]
        assert push < TOLERANCE * 10
        assert two_runs(a, noise).verdict == want


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_a_bug(value):
    a = [np.array([10, 1], np.float32)]
    assert two_runs(a, [np.array([0, value], np.float32)]).verdict == "bug"
    a = [np.array([value, 1], np.float32)]  # both sides alike
    assert two_runs(a, [np.array([0, 0], np.float32)]).verdict == "bug"

"""A server as side B."""

import json
from types import SimpleNamespace
from typing import cast

import httpx2
import numpy as np
import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.diverge import command
from tiny_llm_lab.measure.diverge.command import Server
from tiny_llm_lab.measure.diverge.compare import COARSE_LIMIT, ServedStep, compare_served
from tiny_llm_lab.measure.diverge.side import Recorded
from tiny_llm_lab.types import Tokenizer

Capture = pytest.CaptureFixture[str]


class FakeServer:
    """Scores as A does, from A's own recorded logits, plus `error` on one token of each answer."""

    def __init__(self, monkeypatch, error, echo=True):
        self.recorded = []
        self.bodies = []
        self.error, self.echo, record = error, echo, command.record

        def keep(engine, given):
            self.recorded = record(engine, given)
            return self.recorded

        monkeypatch.setattr(command, "record", keep)
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


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize(
    ("error", "code", "said"), [(0.02, 0, "same (every token)"), (3.0, 1, "bug (step 2")]
)
def test_a_server_that_scores(error, code, said, prompts, capsys, monkeypatch):
    server = FakeServer(monkeypatch, error)
    assert cli.main(["diverge", "--b-url", "http://fake", *prompts]) == code
    assert capsys.readouterr().out.count(said) == 2
    for body, a in zip(server.bodies, server.recorded, strict=True):
        assert body["prompt"] == [*a.prompt, *(token for token, _ in a.steps())] and body["echo"]
    assert COARSE_LIMIT * 10 < 3


@pytest.mark.parametrize(("margin", "verdict"), [(0.1, "rounding"), (2.0, "bug")])
def test_a_server_that_would_say_something_else(margin, verdict):
    """It prefers a token of its own by a little: rounding only where A nearly did, too."""
    letters = cast(Tokenizer, SimpleNamespace(decode=lambda ids: chr(ord("a") + ids[0])))
    logits = np.array([10, 10 - margin, *[-10] * 10], np.float32)
    own, second = logits[:2] - np.log(np.exp(logits.astype(np.float64)).sum())
    a = Recorded([1, 2], {(): logits})
    served = [ServedStep(float(own), {"a": float(own), "z": float(own) + 0.01})]
    result = compare_served(a, served, letters, COARSE_LIMIT)
    assert (result.steps[0].token_b, result.judgement.at, result.judgement.verdict) == ("z", 0, verdict)
    served = [ServedStep(float(own), {"a": float(own), "b": float(second) - 0.3})]
    result = compare_served(a, served, letters, COARSE_LIMIT)
    assert result.steps[0].difference == pytest.approx(0.3, abs=1e-5) and result.judgement.verdict == "same"


@pytest.mark.usefixtures("kernels_on")
def test_a_server_without_echo_is_one_line(prompts, capsys, monkeypatch):
    FakeServer(monkeypatch, 0.0, echo=False)
    assert cli.main(["diverge", "--b-url", "http://fake", *prompts]) == 2
    assert "it must take echo and logprobs" in capsys.readouterr().err.splitlines()[-1]

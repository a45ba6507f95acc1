"""`eval-recall`: right to the letter, or wrong."""

import json

import pytest
from tests.helpers.fake_serving import FakeSolution, loaded

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli import eval_recall
from tiny_llm_lab.measure.corpus.recall import RecallQuestion

Capture = pytest.CaptureFixture[str]


def test_recall_is_exact(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    questions = [
        RecallQuestion(f"q {n}", answer, 2, 1) for n, answer in enumerate(["one two three", "One two three"])
    ]
    monkeypatch.setattr(eval_recall, "load_from_args", lambda *_, **__: loaded(FakeSolution()))
    monkeypatch.setattr(eval_recall, "recall_questions", lambda *_: questions)
    assert cli.main(["eval-recall", "--count", "2", "--seed", "4", "--show-wrong"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "recall 0.500 (1 of 2) · seed 4 · context 512 · prefill_step 128 · default · ref"
    )
    assert lines[1:] == ["1: expected 'One two three', said 'one two three'"]


def test_recall_as_json(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(eval_recall, "load_from_args", lambda *_, **__: loaded(FakeSolution()))
    monkeypatch.setattr(
        eval_recall, "recall_questions", lambda *_: [RecallQuestion("q", "one two three", 1, 1)]
    )
    assert cli.main(["eval-recall", "--json", "--count", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["share"] == 1.0 and document["wrong"] == [] and document["context"] == 512


@pytest.mark.parametrize(
    ("argv", "complaint"), [(["--context", "5000"], "at most"), (["--context", "2"], "64 or more"),
                            (["--count", "0"], "--count: must be 1 or more, not 0")],
)  # fmt: skip
def test_recall_refuses_what_it_cannot_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, argv: list[str], complaint: str
) -> None:
    monkeypatch.setattr(eval_recall, "load_from_args", lambda *_, **__: loaded(FakeSolution()))
    assert cli.main(["eval-recall", *argv]) == 2
    assert complaint in capsys.readouterr().err

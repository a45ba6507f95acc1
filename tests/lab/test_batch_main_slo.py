"""`batch-main --engine` with `--itl-slo-ms` or `--speculate`: what reaches the engine, what is refused."""

import json
from types import SimpleNamespace

import pytest
from tests.helpers.fake_serving import parse
from tests.helpers.toy import toy_checkpoint

from tiny_llm_lab.cli import batch_main
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.runtime.solution import load_serving, load_solution
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.options.engine_options import engine_settings
from tiny_llm_lab.serving.options.model_options import Loaded

Capture = pytest.CaptureFixture[str]


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

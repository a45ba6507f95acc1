"""`batch-main --engine`: the same answers through the engine, its flags, and what it says about itself."""

import json

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.fake_serving import parse
from tests.helpers.toy import toy_checkpoint

from tiny_llm_lab.cli import batch_main
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.runtime.solution import load_serving, load_solution
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.options.engine_options import engine_settings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import SchedulerConfig, UserError
from tiny_llm_ref.engine.core import EngineCore


def built(settings, **more):
    llm, checkpoint = load_solution("ref"), toy_checkpoint()
    return build_engine(
        load_serving("ref"), Loaded(checkpoint, llm, llm.build_model(checkpoint)), settings, **more
    )


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.json"
    texts = ["Read this: " + "x" * 90 + str(i) for i in range(3)]
    path.write_text(json.dumps([*texts, "Hello", {"prompt": "Bye", "max_tokens": 2, "priority": 3}]))
    return str(path)


def document(capsys, *argv):
    assert cli.main(["batch-main", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_default_model_says_the_same_with_and_without(capsys):
    flags = ("--max-tokens", "12")
    with on_cpu("auto"):
        loop = document(capsys, *flags)
        flags = (*flags, "--engine", "--speculate", "ngram", "--max-num-batched-tokens", "256")
        engine = document(capsys, *flags)
    texts = [[request["text"] for request in each["requests"]] for each in (loop, engine)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 8 and all(texts[0])
    prompt_tokens = sum(request["num_prompt_tokens"] for request in engine["requests"])
    assert engine["engine"]["num_computed_prompt_tokens"] == prompt_tokens, "nothing is shared, nothing lost"
    assert engine["engine"]["num_steps"] >= prompt_tokens / 256
    assert "engine" not in loop


def test_flags_reach_the_engine(capsys):
    given = parse(
        batch_main,
        *("--engine", "--max-num-batched-tokens", "300", "--max-num-seqs", "3", "--max-model-len", "200"),
        *("--long-prefill-token-threshold", "50", "--policy", "fair", "--step-mode", "alternate"),
        *("--chunk-grid", "16", "--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
        *("--block-size", "8", "--kv-cache-memory", "154K", "--speculate", "ngram"),
    )
    settings = engine_settings(given, limit=1024)
    assert settings is not None
    assert settings.config == SchedulerConfig(300, 3, 200, 50, False, "fair", "alternate", 16)
    engine = built(settings)
    # A block takes 2 * 2 layers * 2 heads * 24 numbers * 8 tokens * 4 bytes = 6144.
    assert (engine.core.kv_cache.num_blocks, engine.core.kv_cache.block_size) == (25, 8)
    assert engine.core.scheduler.config == settings.config
    assert engine.core.prefix_cache is None
    assert engine.core.spec_stats is not None


def test_what_is_not_said_is_the_default(capsys):
    settings = engine_settings(parse(batch_main, "--engine"), limit=1000)
    assert settings is not None
    assert settings.config == SchedulerConfig(max_model_len=1000)
    assert (settings.enable_prefix_caching, settings.itl_slo_ms, settings.speculate) == (True, None, "off")
    assert engine_settings(parse(batch_main), limit=1000) is None
    engine = built(settings, num_requests=2)
    assert engine.core.kv_cache.num_blocks == 2 * 64, "no more than two requests of 1,024 tokens can fill"
    assert engine.core.config.max_model_len == 1024, "the model's"
    assert engine.core.spec_stats is engine.core.options.budget_controller is None


def test_steps_ahead_are_planned_without_tokens(capsys):
    settings = engine_settings(parse(batch_main, "--engine", "--async-scheduling"), limit=1000)
    assert settings is not None and settings.async_scheduling
    engine = built(settings, num_requests=1)
    assert engine.core.async_scheduling
    for flags in (("--speculate", "ngram"), ("--itl-slo-ms", "50")):
        with pytest.raises(UserError, match="leave out"):
            engine_settings(parse(batch_main, "--engine", "--async-scheduling", *flags), limit=1000)


def test_one_flag_for_both_loops_by_either_name(capsys):
    for seqs, length in (("--max-num-seqs", "--max-model-len"), ("--batch-size", "--max-seq-len")):
        settings = engine_settings(parse(batch_main, "--engine", seqs, "3", length, "200"), limit=1000)
        assert settings is not None
        assert (settings.config.max_num_seqs, settings.config.max_model_len) == (3, 200)


@pytest.mark.usefixtures("toy")
def test_a_draft_model_changes_no_answer(prompts, capsys):
    flags = ["--prompts", prompts, "--raw", "--engine", "--max-tokens", "9", "--ignore-eos"]
    alone = document(capsys, *flags)
    drafted = document(
        capsys, *flags, "--speculate", "draft:toy-of-the-same-weights", "--num-speculative-tokens", "3"
    )
    assert [each["text"] for each in drafted["requests"]] == [each["text"] for each in alone["requests"]]
    assert drafted["engine"]["acceptance_rate"] == 1.0, "the draft model is the model itself"
    assert drafted["engine"]["num_steps"] < alone["engine"]["num_steps"]


def test_blocks_of_8_bits_are_smaller_and_so_more(capsys):
    settings = engine_settings(
        parse(batch_main, "--engine", "--kv-cache-dtype", "int8", "--kv-cache-memory", "64K"), limit=1000
    )
    assert settings is not None and settings.changed()["kv_cache_dtype"] == "int8"
    engine = built(settings)
    # 2 * 2 layers * 2 heads * (24 numbers and a scale of 4 bytes) * 16 tokens: 3584 bytes, not 12,288.
    assert engine.core.kv_cache.num_blocks == 18
    assert engine.core.kv_cache.keys[0].dtype == mx.int8


@pytest.mark.usefixtures("toy")
def test_what_it_says(prompts, capsys):
    flags = ["--engine", "--block-size", "16", "--max-tokens", "4", "--max-num-batched-tokens", "64"]
    assert cli.main(["batch-main", "--prompts", prompts, "--raw", *flags]) == 0
    out, err = capsys.readouterr()
    assert "Chunked prefill is enabled with max_num_batched_tokens=64." in err.splitlines()
    assert "0: started: 102 tokens to prefill" in err and "0: prefilled: 102 tokens" in err
    rows = out.splitlines()
    assert [row.split()[0] for row in rows[1:6]] == ["0", "1", "2", "3", "4"]
    # 102 + 5 + 3 tokens, and of the second and third prompt what comes after six blocks: 6 each.
    assert "122 prompt tokens computed" in rows[-1]
    # The two short ones have no full block, and so ask for nothing.
    assert f"prefix cache hit rate {2 * 96 / (3 * 102):.1%}" in rows[-1]
    assert "preemptions 0 · acceptance rate off" in rows[-1]


@pytest.mark.usefixtures("toy")
def test_steps_ahead_count_as_well(prompts, capsys):
    counted = []
    for flags in ((), ("--async-scheduling",)):
        argv = ["batch-main", "--prompts", prompts, "--raw", "--engine", "--max-tokens", "9"]
        assert cli.main([*argv, "--json", *flags]) == 0
        counted.append(json.loads(capsys.readouterr().out)["engine"])
    assert counted[0] == counted[1] and counted[0]["num_steps"] >= 9


@pytest.mark.usefixtures("toy")
def test_whole_prompts(prompts, capsys):
    flags = ["--engine", "--no-enable-chunked-prefill", "--max-model-len", "256", "--max-tokens", "4"]
    flags += ["--no-enable-prefix-caching"]
    assert cli.main(["batch-main", "--prompts", prompts, *flags]) == 0
    out, err = capsys.readouterr()
    assert "Chunked prefill" not in err
    assert "prefix cache hit rate off" in out
    # Late decodes would leave whole prompts no step in which they fit.
    assert cli.main(["batch-main", "--prompts", prompts, *flags, "--itl-slo-ms", "100"]) == 2
    assert "--no-enable-chunked-prefill" in capsys.readouterr().err


@pytest.mark.usefixtures("toy")
def test_a_prompt_that_does_not_fit_fails_alone(prompts, capsys):
    flags = ["--engine", "--max-model-len", "50", "--max-tokens", "4", "--raw", "--json"]
    assert cli.main(["batch-main", "--prompts", prompts, *flags]) == 1
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert [request["status"] == "error" for request in requests] == [True, True, True, False, False]
    assert "50" in requests[0]["error"]


@pytest.mark.usefixtures("toy")
def test_ctrl_c_still_prints_what_there_is(prompts, capsys, monkeypatch):
    steps, step = [], EngineCore.advance

    def interrupted(core):
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return step(core)

    monkeypatch.setattr(EngineCore, "advance", interrupted)
    assert cli.main(["batch-main", "--prompts", prompts, "--engine", "--max-tokens", "9"]) == 130
    assert "interrupted" in capsys.readouterr().out


@pytest.mark.usefixtures("toy")
def test_the_first_line_tells_only_what_is_not_usual(prompts, capsys):
    flags = ["--engine", "--policy", "fair", "--no-enable-prefix-caching", "--max-tokens", "1", "--raw"]
    assert cli.main(["batch-main", "--prompts", prompts, *flags]) == 0
    said = (
        "default · ref · 5 prompts · engine · max_model_len 1024 · policy fair · enable_prefix_caching False"
    )
    assert capsys.readouterr().err.splitlines()[0] == said

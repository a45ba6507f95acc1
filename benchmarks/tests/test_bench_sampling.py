"""Benchmarks draw as the model's own settings ask for, unless they are told otherwise."""

import json
from argparse import ArgumentParser
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from benchmarks.engine import features as module
from benchmarks.engine.config import BenchConfig
from benchmarks.engine.features import FIELDS, features
from benchmarks.kernels.variants import DRAWS, drawing
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.bench.spec import Spec, at_once, prompts_of
from tiny_llm_lab.measure.report.plan import Plan
from tiny_llm_lab.runtime.models.random.config_json import sampling_json
from tiny_llm_lab.runtime.models.random.shapes import SHAPES
from tiny_llm_lab.runtime.models.recommended import recommended_sampling
from tiny_llm_lab.runtime.models.registry import SHIPPED, find_folder
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, draws_from_args, shown_sampling
from tiny_llm_lab.types import SamplingParams

QWEN = SamplingParams(0.7, 20, 0.8, repetition_penalty=1.05)


def folder(path, **declared):
    (path / "generation_config.json").write_text(json.dumps(declared))
    return path


def drawn(path, *flags):
    parser = ArgumentParser()
    add_draw_arguments(parser)
    return draws_from_args(parser.parse_args(flags), path)


def test_a_model_says_how_it_is_drawn_from_and_flags_say_otherwise(tmp_path):
    assert drawn(tmp_path) == drawn(SHIPPED["default"]) == SamplingParams(), "nothing said is greedy here"
    own = folder(tmp_path, do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05)
    assert drawn(own) == QWEN
    assert drawn(own, "--temperature", "0", "--presence-penalty", "1.5").presence_penalty == 1.5
    assert shown_sampling(QWEN) == "temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05"
    assert shown_sampling(drawn(own, "--temperature=0")) == "greedy, repetition_penalty 1.05"
    assert drawn(folder(tmp_path, top_p=0.5, top_k=-1)) == SamplingParams(1.0, 0, 0.5), "as in serve"
    assert recommended_sampling(folder(tmp_path, do_sample=False, temperature=0.6)) == {"temperature": 0.0}


def test_random_models_of_published_names_ask_for_what_the_real_ones_do():
    asked = {name: sampling_json(shape) for name, shape in SHAPES.items()}
    assert all(not own if name.endswith("-shrunk") else own["top_k"] == 20 for name, own in asked.items())
    counted = Counter((own["temperature"], own["top_p"]) for own in asked.values() if own)
    assert counted == {(0.6, 0.95): 7, (0.7, 0.8): 3, (1.0, 0.95): 4}
    penalties = {name: own.get("repetition_penalty") for name, own in asked.items()}
    named = {name: each for name, each in penalties.items() if each}
    assert named == {"qwen2.5-0.5b": 1.1, "qwen2.5-7b": 1.05}
    assert recommended_sampling(find_folder("random:qwen3-0.6b,layers=1,vocab=512"))["temperature"] == 0.6


def test_answers_keep_their_length_and_differ_in_their_seeds():
    found = [prompt.sampling for prompt in prompts_of(at_once(2, 4, 8), 100, 0, QWEN)]
    assert [(each.max_tokens, each.ignore_eos, each.seed) for each in found] == [(8, True, 0), (8, True, 1)]
    assert {(each.temperature, each.top_k, each.repetition_penalty) for each in found} == {(0.7, 20, 1.05)}


def test_a_report_hands_its_sampling_to_every_benchmark():
    parts = list(Plan("default", Path("out"), sampling=("--temperature=0",)).parts())
    told = {"--temperature=0" in each.command for each in parts if "--model" in each.command}
    assert told == {True}


@pytest.fixture(scope="module")
def config(kernels_on):
    checkpoint, llm = load_checkpoint("default"), cast(Any, TaskNames(cast(Any, load_solution("ref"))))
    spec = Spec("default", "ref", sampling=QWEN)
    return BenchConfig(llm, llm.build_model(checkpoint), checkpoint, spec, rounds=1, streams=1, context=16)


def test_the_steps_of_an_engine_are_drawn_as_the_model_asks_for(config):
    assert config.sampling == shown_sampling(QWEN)
    assert {prompt.sampling.temperature for prompt in config.asked(2, 20)} == {0.7}


@pytest.mark.parametrize(("streams", "num_drafts"), [(1, 0), (8, 0), (8, 4)])
def test_every_field_has_a_row_and_drafts_are_right(config, streams, num_drafts, monkeypatch):
    names = ("greedy", "1, top_p 0.95", "JSON schema", "0.7, all of these", "prompt")
    names += ("prompt, prompt_logprobs 5", "prompt, logits of each token")
    monkeypatch.setattr(module, "FIELDS", {name: FIELDS[name] for name in names})
    rows = {row.name: row.samples for row in features(replace(config, streams=streams), num_drafts).rows}
    assert tuple(rows) == (names[:4] if num_drafts else names)
    for name, samples in rows.items():
        [seconds], [plain], ratio = (samples[key] for key in ("seconds", "plain_s", "ratio"))
        assert ratio == [cast(float, seconds) / cast(float, plain)], name
        assert samples["accepted"] == ([1.0] if num_drafts else []), name


def test_all_ways_to_draw_and_to_score_agree():
    for asked in DRAWS:
        made = drawing(3, asked, ["tiny_llm_ref"], vocab=300)
        assert [variant.name for variant in made.variants] == ["arrays", "MLX, one graph", "C++"]
        assert made.cost.num_bytes == 2 * 3 * 300
        first, *others = (variant.run() for variant in made.variants)
        for other in others:
            if asked.logprobs is None:
                assert mx.array_equal(cast(mx.array, first), cast(mx.array, other)), made.title
            else:
                assert mx.allclose(cast(Any, first)[0], cast(Any, other)[0], atol=1e-5), made.title

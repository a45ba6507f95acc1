"""The harness and the report that all benchmarks share: order, medians, ratios, tables, facts."""

import io
import itertools
import json
import os
import re
from argparse import ArgumentParser
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from rich.console import Console
from tests.helpers.fake_clock import FakeClock
from tests.helpers.throughput import Children, bench

from benchmarks import bench as bench_of_clone
from benchmarks.commands import COMMANDS
from benchmarks.engine import features as module
from benchmarks.engine.config import BenchConfig
from benchmarks.engine.features import FIELDS, features
from benchmarks.harness import Variant, time_variants
from benchmarks.kernels.variants import DRAWS, drawing
from benchmarks.peers.registry import PEERS
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.bench import host
from tiny_llm_lab.measure.bench.peer import Peer
from tiny_llm_lab.measure.bench.report import Aim, Column, Ratio, Report, Row, Section, print_section
from tiny_llm_lab.measure.bench.spec import Spec, at_once, prompts_of
from tiny_llm_lab.measure.bench.throughput import command
from tiny_llm_lab.measure.report.plan import Plan
from tiny_llm_lab.runtime.console.talk import CrashError
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.models.random.config_json import sampling_json
from tiny_llm_lab.runtime.models.random.shapes import SHAPES
from tiny_llm_lab.runtime.models.recommended import recommended_sampling
from tiny_llm_lab.runtime.models.registry import SHIPPED, find_folder
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, draws_from_args, shown_sampling
from tiny_llm_lab.types import SamplingParams


def test_the_order_is_balanced():
    order = list(interleave([1, 2, 3], 2))
    assert order == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1)]
    assert list(interleave("ab", 1, warm_ups=2)) == [
        (-2, "a"),
        (-2, "b"),
        (-1, "b"),
        (-1, "a"),
        (0, "a"),
        (0, "b"),
    ]
    assert list(interleave("ab", 2, alternate=False)) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_a_variant_that_is_removed_has_no_further_turn():
    left, turns = ["a", "b", "c"], []
    for _, name in interleave(left, 2):
        turns.append(name)
        if name == "a" and "b" in left:
            left.remove("b")
    assert turns == ["a", "c", "c", "a"]


def test_variants_are_interleaved_and_the_warm_up_does_not_count():
    clock, order = FakeClock(), []

    def variant(name, seconds):
        return Variant(name, lambda: (order.append(name), clock.sleep(seconds * len(order)))[1])

    seconds = time_variants([variant("a", 1.0), variant("b", 0.5)], 2, clock=clock, synchronize=lambda: None)
    assert "".join(order) == "baabba", "warm-up, a round forwards, a round backwards"
    assert seconds == {"a": (3.0, 6.0), "b": (2.0, 2.5)}
    with pytest.raises(ValueError, match="same name"):
        time_variants([variant("a", 1.0), variant("a", 1.0)], 1, clock=clock)


def test_slow_variants_run_twice_and_lazy_results_are_evaluated():
    clock, slow = FakeClock(), []
    x = mx.ones(3)
    variants = [
        Variant("slow", lambda: (slow.append(1), clock.sleep(1.0), x + len(slow))[2]),
        Variant("fast", lambda: clock.sleep(0.1)),
    ]
    seconds = time_variants(variants, 9, slow_s=0.3, clock=clock)
    assert [len(seconds[name]) for name in ("slow", "fast")] == [2, 9] and len(slow) == 2


def test_a_ratio_is_that_of_medians_and_its_spread_that_of_rounds():
    found = Ratio.of("x", [2.0, 3.0, 10.0], [2.0, 2.0, 4.0], Aim(at_most=1.4))
    assert found is not None
    assert (found.value, found.low, found.high, found.is_met) == (1.5, 1.0, 2.5, False)
    assert found.line() == "x: 1.500 (1.000 to 2.500), aim at most 1.4: MISSED"
    met, none = Ratio.of("x", [1.0], [1.0], Aim(at_least=0.95)), Ratio.of("x", [1.0], [1.0])
    assert met is not None and met.is_met is True and none is not None and none.is_met is None
    assert none.line() == "x: 1.000"


@pytest.mark.parametrize(("over", "under"), [([1.0, None], [1.0, 1.0]), ([1.0], [0.0]), ([], [])])
def test_there_is_no_ratio_where_something_was_not_measured(over, under):
    assert Ratio.of("x", over, under) is None


def test_cells():
    column = Column("s", "ms", ".1f", 1e3, has_spread=True)
    assert column.cell([0.001, 0.003, 0.002]) == "2.0 (1.0-3.0)"
    assert [column.cell(samples) for samples in ([0.001], [], [None], [0.001, None])] == ["1.0", "", "-", "-"]
    assert Column("s", "", ".2f", has_spread=True, unit="x").cell([1.0, 2.0]) == "1.50x (1.00-2.00)"
    assert Column("s", "", ".2f").cell([1.0, 2.0]) == "1.50"


def section():
    columns = [Column(f"m{i}", f"metric {i}", ".2f", has_spread=True) for i in range(9)]
    numbers = itertools.count(1)
    rows = [Row(f"variant {v}", {f"m{i}": [next(numbers) * 1234.5, 0.5] for i in range(9)}) for v in range(3)]
    return Section("name", "a title", columns, rows, notes=["a note"])


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_tables_fold_and_no_number_is_cut(width, is_terminal):
    def lines(width):
        file = io.StringIO()
        print_section(
            Console(width=width, file=file, force_terminal=is_terminal, color_system=None), section()
        )
        return file.getvalue().splitlines()

    def numbers(shown):
        return sorted(re.findall(r"[\d.]+\.\d\d", " ".join(shown)))

    narrow = lines(width)
    assert max(map(len, narrow)) <= width and "…" not in "".join(narrow)
    assert numbers(narrow) == numbers(lines(500)) and len(numbers(narrow)) == 3 * 9 * 3
    assert sum("variant 2" in line for line in narrow) > 1, "every part of the table names its rows"


def test_every_document_has_the_schema_and_the_samples(capsys):
    host_part = {"cpu": "x"}
    report = Report(is_json=True)
    report.add(section())
    assert capsys.readouterr().out == ""
    result = report.end("kernels", {"op": "qmm"}, host_part, extra=1)
    value = json.loads(capsys.readouterr().out)
    assert value == result
    assert (value["schema"], value["benchmark"], value["extra"]) == (1, "kernels", 1)
    assert value["settings"] == {"op": "qmm"} and value["host"] == host_part
    metric = value["sections"][0]["rows"][0]["metrics"]["m0"]
    assert metric == {"median": 617.5, "min": 0.5, "max": 1234.5, "samples": [1234.5, 0.5]}


def test_host_facts_of_a_mac_with_a_gpu(monkeypatch):
    said = {"sysctl": "Apple M9"}
    monkeypatch.setattr(host, "_output", lambda *command: said.get(command[0]))
    monkeypatch.setattr(host.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(host.platform, "mac_ver", lambda: ("26.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(host.mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr(host.mx.metal, "is_available", lambda: True)
    monkeypatch.delenv("MLX_MAX_MB_PER_BUFFER", raising=False)
    limits = []  # MLX reads them when its device is made, which asking for its name does

    def device_info():
        limits.append(os.environ.get("MLX_MAX_MB_PER_BUFFER"))
        return {"device_name": "Apple M9", "memory_size": 64, "max_recommended_working_set_size": 48}

    monkeypatch.setattr(host.mx, "device_info", device_info)
    facts = host.host_facts()
    assert (facts["cpu"], facts["system_version"], limits) == ("Apple M9", "26.1", ["200"])
    assert facts["gpu"] == {"name": "Apple M9", "memory_bytes": 64, "recommended_working_set_bytes": 48}


# `bench --baselines` with other engines: which variants run, in turns, and what is left out


def installed(monkeypatch, is_there):
    peers = dict[str, Peer]()
    for name, peer in PEERS.items():
        module = "json" if is_there else "no_such_module"
        peers[name] = replace(peer, requires=(module,))
    monkeypatch.setattr(bench_of_clone, "PEERS", peers)


def test_a_missing_baseline_is_one_line(monkeypatch, capsys):
    installed(monkeypatch, False)
    assert bench(monkeypatch, Children(), "--baselines", "torch", "--json", catalogue=COMMANDS) == 0
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if "torch" in line]
    assert "not installed: run pip install" in line
    result = json.loads(captured.out)
    assert "not installed" in result["skipped"]["torch"] and result["peers"] == {}


def test_what_our_own_python_lacks_is_what_to_install(monkeypatch):
    installed(monkeypatch, False)
    for peer in bench_of_clone.PEERS.values():
        if peer.variable:
            monkeypatch.setenv(peer.variable, "python")
            assert "run pip install no_such_module (" in str(peer.missing())


def test_engines_take_turns(monkeypatch, capsys):
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--baselines", "torch,mlx-lm", catalogue=COMMANDS) == 0
    turns = [spec.variant or spec.solution for spec in children.asked]
    order = ["ref", "bfloat16", "float32", "mlx-lm"]
    assert turns == order + order[::-1], "forwards, then backwards"
    assert [spec.seed for spec in children.asked] == [0] * 4 + [1] * 4
    lengths = {spec.solution: spec.requests[0].max_tokens for spec in children.asked}
    slow = command.SLOW_OUTPUT_LEN
    assert lengths == {"ref": 32, "torch": 32, "mlx-lm": slow}, "mlx-lm is slow on a CPU"
    captured = capsys.readouterr()
    assert f"answers of {command.SLOW_OUTPUT_LEN} tokens, unlike our own run" in captured.err
    assert "torch bfloat16" in captured.out and "1.00x" in captured.out


FORMATS = [("4", ["Q4_0", "BF16"]), ("8", ["Q8_0", "BF16"]), ("16", ["BF16"])]


@pytest.mark.parametrize(("bits", "formats"), FORMATS)
def test_llama_cpp_has_as_many_bits_as_the_model(monkeypatch, bits, formats):
    installed(monkeypatch, True)
    children = Children()
    flags = f"--bits {bits} --repeats 1 --baselines llama.cpp".split()
    assert bench(monkeypatch, children, *flags, catalogue=COMMANDS) == 0
    variants = [spec.variant for spec in children.asked if spec.solution == "llama.cpp"]
    assert variants == [variant for each in formats for variant in (f"{each} fa", each)]


def test_a_peer_that_fails_is_left_out(monkeypatch, capsys):
    installed(monkeypatch, True)
    children = Children({"float32": CrashError("Traceback\nMemoryError: too big")})
    assert bench(monkeypatch, children, "--baselines", "torch", "--json", catalogue=COMMANDS) == 0
    captured = capsys.readouterr()
    assert "torch float32 is left out: MemoryError: too big" in captured.err
    result = json.loads(captured.out)
    assert [row["name"] for row in result["sections"][0]["rows"]] == ["ref", "torch bfloat16"]
    assert result["peers"]["torch"]["best_variant"]["decode_tok_s"] == "bfloat16"
    assert result["skipped"] == {"torch float32": "MemoryError: too big"}


# Benchmarks draw as the model's own settings ask for, unless they are told otherwise


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
    assert {name for name, own in asked.items() if not own} == {name for name in asked if "-shrunk" in name}
    without = {name for name, own in asked.items() if own and own.get("top_k") != 20}
    assert without == {"llama-3.1-8b", "llama-3.2-1b"}
    counted = Counter((own["temperature"], own["top_p"]) for own in asked.values() if own)
    assert counted == {(0.6, 0.95): 7, (0.7, 0.8): 5, (1.0, 0.95): 5, (0.6, 0.9): 2}
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

"""--activation-bits: which weights ask for 8, what keeps asking, who is refused, how the flag gets there."""

import asyncio
import gc
import random
import shlex
from dataclasses import replace
from types import FunctionType, ModuleType, SimpleNamespace
from typing import get_args

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.throughput import SPEC

import tiny_llm_ref
from tiny_llm_lab import LLM, AsyncLLM
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench import fresh, sample
from tiny_llm_lab.measure.diverge.compare import is_float32, running, side_args
from tiny_llm_lab.measure.labs.server import serve_arguments
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.models.loading import load_checkpoint
from tiny_llm_lab.runtime.models.weights.activation_bits import with_activation_bits
from tiny_llm_lab.serving import building
from tiny_llm_lab.serving.async_engine.loop import built_from
from tiny_llm_lab.serving.async_engine.model import on_thread
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.serving.options.model_options import load
from tiny_llm_lab.serving.prefix_disk.building import fingerprint
from tiny_llm_lab.serving.server import command as serve
from tiny_llm_lab.serving.server.run_server import startup_line
from tiny_llm_lab.types import QuantizationMode, QuantizedWeights, UserError
from tiny_llm_ref.models.parallel import shard_checkpoint
from tools.commands import EVERY

DENSE, PACKED = "random:qwen3-shrunk", "random:qwen3-shrunk,bits=4"
HYBRID = "mtp=1,group=32,value_dim=32"
# In groups that two ranks do not cut.
KINDS = {
    "qwen3-shrunk": ("", "tied=0"),
    "qwen2.5-shrunk": ("group=32", "group=32,tied=1"),
    "qwen3-moe-shrunk": ("", "group=32"),
    "qwen3.5-shrunk": (HYBRID, f"tied=0,{HYBRID}"),
    "qwen3.5-moe-shrunk": (HYBRID,),
}
NEEDS = "--activation-bits 8 needs our C++ kernels on a CPU"


@pytest.fixture(autouse=True)
def _kernels():
    with on_cpu("cpp"):
        yield


def loaded(model, bits=8, **changes):
    return load(ModelSettings(model, activation_bits=bits, **changes))


def packed_in(model):
    """Every packed matrix that a model holds, however deep."""
    seen, left = dict[int, object](), [model]
    while left:
        thing = left.pop()
        if id(thing) not in seen and not isinstance(thing, type | ModuleType | FunctionType):
            seen[id(thing)] = thing
            left += gc.get_referents(thing)
    return [each for each in seen.values() if isinstance(each, QuantizedWeights)]


@pytest.mark.parametrize("seed", range(12))
def test_every_matrix_that_is_multiplied_asks_in_models_and_in_shards_of_any_kind(seed):
    draw = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    options, bits = draw.choice(KINDS[kind]), draw.choice((4, 8))
    name = f"random:{kind},bits={bits},{options}".rstrip(",")
    found = loaded(name)
    checkpoint, models = found.checkpoint, [found.model]
    assert found.activation_bits == 8
    if "mtp=1" in options:
        models.append(tiny_llm_ref.MtpModel(found.model, checkpoint.weights))
    in_rows = replace(checkpoint, weights=with_activation_bits(load_checkpoint(name).weights, 8))
    models += [tiny_llm_ref.build_model(shard_checkpoint(in_rows, rank, 2)) for rank in range(2)]
    for held in map(packed_in, models):
        exact = [w.in_blocks or w.weight.shape[-2] for w in held if w.activation_bits != 8]
        routers = [rows for rows in exact if rows in (1, checkpoint.config.num_experts)]
        assert len(held) > 10 and bool(routers) == ("moe" in kind), kind
        assert len(exact) - len(routers) == (not checkpoint.config.tie_word_embeddings), kind
        stacks = [w for w in held if w.weight.ndim == 3 + bool(w.in_blocks)]
        assert all(w.mapped(lambda part: part[1]).activation_bits == 8 for w in stacks)


@pytest.mark.parametrize("seed", range(20))
def test_only_what_the_kernels_read_asks_and_nothing_else_changes(seed):
    draw, none = random.Random(seed), mx.zeros(1)
    weights = {"norm.weight": none}
    for name in ["model.embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", *map(str, range(20))]:
        mode = draw.choice([*get_args(QuantizationMode), "affine", "affine"])
        size = draw.choice((16, 32, 64, 128)), draw.choice((2, 3, 4, 5, 6, 8))
        weights[name] = QuantizedWeights(none, none, none, *size, mode=mode)
    if draw.random() < 0.5:
        del weights["lm_head.weight"]
    asking = with_activation_bits(weights, 8)
    for name, w in weights.items():
        reads = isinstance(w, QuantizedWeights) and (w.mode, w.bits % 4) == ("affine", 0)
        is_looked_up = name == "model.embed_tokens.weight" and "lm_head.weight" in weights
        if reads and w.group_size > 16 and not is_looked_up and name != "mlp.gate.weight":
            assert vars(asking[name]) == vars(w) | {"activation_bits": 8}
        else:
            assert asking[name] is w


REFUSED = {
    f"--model {DENSE}": f"128, and {DENSE} has none: leave it out",
    "--solution mlx-lm": f"{NEEDS}: choose another --solution, or leave it out",
    "--device gpu": f"{NEEDS}: choose --device cpu, or leave it out",
    "off": f"{NEEDS}: unset {native.VARIABLE}, or leave it out",
    "mlx": f"{NEEDS}: unset {native.VARIABLE}, or leave it out",
    "no compiler": f"{NEEDS}, and {PACKED} runs without: leave it out",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, monkeypatch, capsys):
    flags = f"--model {PACKED} {case if case.startswith('--') else ''}"
    if case in ("off", "mlx"):
        monkeypatch.setenv(native.VARIABLE, case)
    if case == "no compiler":
        monkeypatch.setattr(tiny_llm_ref.models.build, "kernels", lambda *_: None)
    asked = ["main", "hi", "--max-tokens", "1", *flags.split(), "--activation-bits"]
    assert cli.main([*asked, "8"]) == 2
    assert REFUSED[case] in capsys.readouterr().err.strip().splitlines()[-1]
    if "gpu" not in case:
        monkeypatch.setattr(model_options, "AUTO_BITS", 8)
        assert cli.main([*asked, "auto"]) == 0, "auto refuses nothing, whatever it is"


def test_refusals_of_the_library(monkeypatch):
    with pytest.raises(UserError, match="--activation-bits must be 16, 8 or auto, not 4"):
        LLM(PACKED, activation_bits=4)
    with pytest.raises(UserError, match="--activation-bits must be 16, 8 or auto, not 4"):
        asyncio.run(AsyncLLM(PACKED, activation_bits=4).__aenter__())
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    with pytest.raises(UserError, match="choose --device cpu"):
        LLM(PACKED, activation_bits=8)


def test_auto_takes_what_the_model_can(monkeypatch):
    monkeypatch.setattr(model_options, "AUTO_BITS", 8)
    assert loaded(PACKED, "auto").activation_bits == 8 and loaded(DENSE, "auto").activation_bits == 16
    assert loaded(PACKED, "auto", solution="mlx-lm").activation_bits == 16
    monkeypatch.setenv(native.VARIABLE, "off")
    assert loaded(PACKED, "auto").activation_bits == 16


def test_prefixes_on_the_disk_are_of_one_number_of_bits(tmp_path):
    models = [loaded(PACKED, bits) for bits in (8, 16, "auto")]
    digests = [fingerprint(each.checkpoint, each.model, "tiny_llm_ref", tmp_path) for each in models]
    assert digests[0] != digests[1] == digests[2]


@pytest.mark.parametrize("drafter", [DENSE, PACKED])
def test_a_draft_model_may_be_one_that_it_does_not_reach(drafter, monkeypatch, tmp_path):
    loads = []

    def seen(*args, **more):
        loads.append(load(*args, **more))
        return loads[-1]

    monkeypatch.setattr(building, "load", seen)
    engine = EngineSettings(speculate=f"draft:{drafter}", num_blocks=8)
    building.load_and_build(ModelSettings(PACKED, activation_bits=8, engine=engine))
    assert [each.activation_bits for each in loads] == [8, 8 if drafter == PACKED else 16]
    (tmp_path / "prompts").write_text("hi\n")
    flags = f"--engine --model {PACKED} --activation-bits 8 --speculate draft:{drafter} --max-tokens 2"
    assert cli.main(["batch-main", *flags.split(), "--prompts", str(tmp_path / "prompts")]) == 0


COMMAND_LINES = {
    "main": "hi",
    "batch-main": "",
    "batch-main --engine": "",
    "chat": "",
    "serve": "--port 0",
    "batch": "--input {input} --output {folder}/answers.jsonl",
    "bench": "--repeats 1 --prompt-len 16 --output-len 16",
    "bench-engine": "--experiment mixed",
    "tune": "--out {folder}/tune",
    "diverge": "--b=",
}


def test_every_command_with_threads_has_it():
    flags = {name: EVERY.parser(name)._option_string_actions for name in EVERY}
    with_threads = {name for name, known in flags.items() if "--threads" in known} - {"bench-kernels"}
    assert with_threads == {name for name, known in flags.items() if "--activation-bits" in known}
    # A cluster reads its flags with the server's function.
    assert with_threads | {"diverge"} == {name.split()[0] for name in COMMAND_LINES} | {"cluster"}


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_it_reaches_the_model(command, monkeypatch, tmp_path):
    asked = []

    def refuse(bits, *_):
        asked.append(bits)
        raise UserError("that is all we wanted to know")

    monkeypatch.setattr(model_options, "require_kernels", refuse)
    monkeypatch.setattr(serve, "in_process", on_thread)
    monkeypatch.setattr(fresh, "run_fresh", lambda measure, spec, threads: sample.measure(spec))
    (tmp_path / "input").write_text("hi\n")
    line = COMMAND_LINES[command].format(input=tmp_path / "input", folder=tmp_path)
    flags = f"--model {PACKED} --activation-bits 8"
    own = ["--a", flags] if command == "diverge" else flags.split()
    assert cli.main([*command.split(), *line.split(), *own], EVERY) in (1, 2)
    assert asked == [8]


@pytest.mark.parametrize("bits", [8, 16])
def test_who_is_told(bits):
    """A server's first line, a measurement, the servers of a lab, and what judges differences."""
    engine = EngineSettings(num_blocks=8)
    built = built_from(ModelSettings(PACKED, activation_bits=bits, engine=engine), lambda *_: None)
    served = SimpleNamespace(facts=built.facts, names=["x"], max_num_tokens=1, num_ranks=1)
    assert ("activations of 8 bits" in startup_line(served, "here")) == (bits == 8)
    assert sample.measure(replace(SPEC, activation_bits=bits)).facts["activation_bits"] == str(bits)
    flags, tune = ["--activation-bits", str(bits)], EVERY.parser("tune")
    assert serve_arguments(tune.parse_args(flags), PACKED, 64)[-2:] == flags
    assert flags[0] not in serve_arguments(tune.parse_args([]), PACKED, 64)
    with running(side_args(f"--model {PACKED} --dtype float32 {shlex.join(flags)}", "--a")) as (
        found,
        *_,
        own,
    ):
        assert is_float32(found, own) == (bits == 16)

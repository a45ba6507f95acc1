"""`fit`: which models a machine can serve; what it prints is the plan that `serve` would make."""

import json
import re
import shlex
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.fit.command import prompt_s, verdict
from tiny_llm_lab.measure.fit.models import GIB, claimed_mac, model_called
from tiny_llm_lab.measure.simulate.setting import Calibrated
from tiny_llm_lab.runtime.models.registry import HUB_IDS
from tiny_llm_lab.serving.building import require_length
from tiny_llm_lab.serving.server.command import model_settings
from tiny_llm_lab.serving.server.settings import server_settings


def document(capsys, *argv):
    code = cli.main(["fit", "--json", *argv])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if any(each["plan"] for each in found["models"]) else 1)
    return found


def test_all_models_with_a_name_the_largest_that_serves_long_requests_first(capsys):
    models = document(capsys, "--memory", "32G")["models"]
    assert {each["model"] for each in models} == {name for name in HUB_IDS if name.endswith("-4bit")}
    longest = [each["plan"]["max_model_len"] if each["plan"] else 0 for each in models]
    serving = [count >= 32_768 for count in longest]
    assert serving == sorted(serving, reverse=True) and models[0]["model"] == "qwen3.6-35b-a3b-4bit"
    assert [each["model"] for each in models if each["error"]] == ["qwen3-coder-next-4bit"]


def test_more_memory_less_bits_or_a_shorter_request_give_more(capsys):
    def plan(*argv):
        [found] = document(capsys, "qwen3.8-27b-4bit", *argv)["models"]
        return found["plan"] or {"max_model_len": 0}

    text = "--language-model-only"  # without it 24 GB are too few
    longest = [plan("--memory", f"{size}G", text)["max_model_len"] for size in (16, 24, 32, 64)]
    assert longest == sorted(longest) and longest[0] == 0 < longest[1]
    assert plan("--memory", "24G")["max_model_len"] == 0
    usual = plan("--memory", "32G")
    assert plan("--memory", "32G", "--kv-cache-dtype", "int8")["streams_8k"] > usual["streams_8k"]
    assert plan("--memory", "32G", "--max-model-len", "65536")["num_states"] < usual["num_states"]
    assert plan("--memory", "32G", "--max-model-len", "262144")["max_model_len"] == 0


def test_lines_at_80_columns(capsys):
    for memory, best in (("16G", "qwen3.5-9b-4bit"), ("64G", "qwen3-coder-next-4bit")):
        assert cli.main(["fit", "--memory", memory]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[-1].endswith(f"serve --model {best}")
    assert cli.main(["fit", "qwen3.5-9b-4bit", "--memory", "8G"]) == 1
    assert "does not fit: the weights need 5.5 GiB and 3.0 GiB are free" in capsys.readouterr().out


MODELS = [
    "random:qwen3-shrunk,bits=4",
    "random:qwen3.5-moe-shrunk,mtp=1",
    "random:qwen3-vl-shrunk,deep=1,bits=4",
]


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_those_of_the_files(name):
    """Of configurations alone, to the byte but for headers."""
    files = load_checkpoint(name).path.glob("*.safetensors")
    size = sum(file.stat().st_size for file in files)
    assert size - 40_000 < model_called(name).weights <= size


@pytest.mark.parametrize("name", ["qwen3-vl-shrunk", "qwen3.5-vl-shrunk,bits=4,group=32,value_dim=32"])
@pytest.mark.parametrize("has_pictures", [True, False])
def test_the_weights_are_what_loading_allocates(name, has_pictures):
    """With the tower and without it, of a name and of its folder."""
    name = f"random:{name},vocab=16000,tower_width=256,tower_inner=512"
    whole = model_called(name)
    loaded = load_checkpoint(name, has_pictures=has_pictures, dtype="bfloat16" if "bits" in name else None)
    allocated = sum(w.nbytes for w in loaded.weights.values())
    model = whole if has_pictures else whole.text_alone
    folder = model_called(str(loaded.path))
    assert allocated == pytest.approx(model.weights, rel=0.001) and whole.tower > 0.3 * whole.weights
    assert (folder.weights, folder.tower, folder.config) == (whole.weights, whole.tower, whole.config)
    assert (loaded.config.pictures is not None) == (model.config.pictures is not None) == has_pictures


def test_what_reads_pictures_is_counted_unless_it_is_left_out(capsys):
    """Billions of bytes, in 16 bits; then there is more for keys and values."""
    for name, tower in (("qwen3-vl-2b", 0.81), ("qwen3.5-9b-4bit", 0.91), ("qwen3.5-0.8b-4bit", 0.2)):
        plans = []
        for flags in ((), ("--language-model-only",)):
            plans += [document(capsys, name, "--memory", "32G", *flags)["models"][0]["plan"]]
        with_it, without = plans
        assert with_it["weights"] - without["weights"] == pytest.approx(tower * 1e9, rel=0.02), name
        assert with_it["step"] > without["step"] and with_it["total"] <= claimed_mac(32 * GIB).free
        assert with_it["num_blocks"] < without["num_blocks"]


def test_a_plan_is_for_the_device_that_is_asked_for(monkeypatch, capsys):
    calls = Mock(device_memory=Mock(return_value=claimed_mac(8 * GIB)))
    for name in ("select_device", "device_memory"):
        monkeypatch.setattr(f"tiny_llm_lab.measure.fit.command.{name}", getattr(calls, name))
    assert cli.main(["fit", "qwen3-0.6b-4bit", "--device", "cpu"]) == 0
    assert calls.mock_calls == [call.select_device("cpu"), call.device_memory()]
    assert capsys.readouterr().out.endswith("serve --device cpu --model qwen3-0.6b-4bit\n")


def test_each_name_has_a_configuration():
    """Sizes as published, in billions; 4 bits take 4.5, with scales and biases."""
    sizes = {
        "qwen3-8b": 8.2,
        "qwen3-30b-a3b": 30.5,
        "qwen3.5-9b": 9,
        "qwen3.8-27b": 27,
        "qwen3.6-35b-a3b": 35,
    }
    for name in HUB_IDS:
        model = model_called(name).text_alone
        if (base := name.removesuffix("-4bit")) in sizes:
            count = 8 * model.weights / (model.bits if model.bits == 16 else 4.5)
            assert count == pytest.approx(sizes[base] * 1e9, rel=0.05), name


def test_a_folder_is_measured(capsys):
    folder = load_checkpoint("default-hybrid").path
    [found] = document(capsys, str(folder))["models"]
    assert found["bits"] == 16 and found["plan"]["max_model_len"] == 4096


def test_a_prompt_takes_its_chunks():
    """Each has a fixed time, its tokens, and the stored ones that they attend to."""
    speed = Calibrated(64, (0.0, 0.0, 0.0, 0.0), (1.0, 0.01, 0.001, 0.0))
    assert prompt_s(speed, 270, 100) == pytest.approx(3 + 2.7 + 0.001 * 270 * 271 / 2)


@pytest.mark.parametrize("argv", [[], ["--json"], ["qwen3-0.6b", "--json"]])
def test_step_times_that_would_not_be_used_are_refused(argv, tmp_path, capsys):
    line = [1.0, 0, 0, 0]
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({"split_tokens": 16, "small": line, "large": line}))
    assert cli.main(["fit", *argv, "--memory", "32G", "--calibration", str(file)]) == 2
    assert "of one model: name it, and leave out --json" in capsys.readouterr().err
    assert cli.main(["fit", "qwen3-0.6b", "--memory", "32G", "--calibration", str(file)]) == 0
    assert "tokens, alone" in capsys.readouterr().out


def test_every_server_of_the_page_on_clients_starts_and_has_the_windows_that_it_names():
    """On a Mac of 16 GB, as far as the plan: with random weights of the model's shape."""
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    longest = []
    for command in re.findall(r"^\./pdmw run serve (.+)$", page, re.MULTILINE):
        args = cli.COMMANDS.parser("serve").parse_args(shlex.split(command))
        base = re.sub("^.*/|embedding-|reranker-", "", args.model.lower())
        args.model = "random:" + base.replace("-4bit", ",bits=4")
        settings, _ = model_settings(args), server_settings(args)
        require_length(settings)
        model, here = model_called(args.model), claimed_mac(16 * GIB)
        assert verdict(model, settings.engine, here, settings.max_model_len).plan, command
        longest.append(settings.max_model_len or 0)
    windows = re.findall(r"(?i)(?:window\w*|context_tokens|context)\W{1,4}(\d{4,})", page)
    assert len(longest) == 4 and len(windows) == 7
    assert {int(each) for each in windows} == {max(longest), 4096}

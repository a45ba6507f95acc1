"""`random:NAME,...`: real shapes and real folders, the same bits everywhere, nothing half-written."""

import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import mlx.core as mx
import numpy as np
import pytest
from huggingface_hub import constants, errors
from tests.helpers.checkpoints import copy_of, tensors_of

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.loading import config_of
from tiny_llm_lab.runtime.models.random import random_checkpoint
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.random_checkpoint import cache_folder
from tiny_llm_lab.runtime.models.random.shapes import SHAPES, parse_shape
from tiny_llm_lab.runtime.models.registry import HUB_IDS, find_folder
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import QuantizedWeights, UserError


def test_options_of_a_name():
    shape = parse_shape("qwen3-0.6b,layers=2,vocab=2048,bits=4")
    assert (shape.layers, shape.vocab, shape.bits, shape.hidden) == (2, 2048, 4, 1024)
    assert parse_shape("qwen3-0.6b-4bit") == parse_shape("qwen3-0.6b,bits=4")


@pytest.mark.parametrize("text", ["qwen3-8b", "qwen3-8b,layers=2", "qwen2.5-7b,layers=1,bits=4,seed=3"])
def test_the_text_of_a_shape_parses_to_it(text):
    assert str(parse_shape(text)) == text
    assert parse_shape(str(parse_shape(text))) == parse_shape(text)


def test_two_ways_to_ask_are_one_folder():
    names = ("random:qwen3-shrunk,seed=1,bits=4", "random:qwen3-shrunk-4bit,seed=1,layers=3")
    assert len({find_folder(name) for name in names}) == 1


DEEP = ("qwen3-0.6b,deep=1", "qwen3.5-vl-shrunk,deep=1", "qwen3-vl-shrunk,deep=3")
IMPOSSIBLE = [
    ("gpt2", f"unknown model 'gpt2': choose one of {', '.join(SHAPES)}"),
    ("", f"unknown model '': choose one of {', '.join(SHAPES)}"),
    ("qwen3-0.6b,bits=7", "bits must be 2, 3, 4, 5, 6, 8, 16 or 32"),
    ("qwen3-0.6b,vocab=100", "vocab must be 259 or more"),
    ("qwen3-0.6b,layers=0", "every size must be 1 or more"),
    ("qwen3-0.6b,tied=2", "tied must be 0 or 1"),
    ("qwen3-0.6b,kv_heads=3", "kv_heads must divide heads"),
    ("qwen3-0.6b,kv_heads=0", "every size must be 1 or more"),
    ("qwen3-0.6b,head_dim=33", "head_dim must be even"),
    ("qwen2.5-0.5b,heads=4", "heads x head_dim must be hidden in qwen2"),
    ("qwen3-0.6b,tower=1", "a tower is for qwen3_vl and qwen3_5 models, without mtp"),
    ("qwen3.5-vl-shrunk,mtp=1", "a tower is for qwen3_vl and qwen3_5 models, without mtp"),
    *((text, "deep must be below tower and layers, in qwen3_vl alone") for text in DEEP),
    ("qwen3-vl-shrunk,tower_side=0", "every size of a tower must be 1 or more"),
    ("qwen3-vl-shrunk,tower_width=20", "tower_width must be a multiple of 4 x tower_heads"),
    ("qwen3-0.6b,hidden=96,bits=4", "hidden, inner and heads x head_dim must be multiples of group=64"),
]


@pytest.mark.parametrize(("text", "complaint"), IMPOSSIBLE)
def test_a_shape_that_cannot_be(text, complaint):
    with pytest.raises(UserError) as caught:
        find_folder(f"random:{text}")
    assert str(caught.value) == f"random:{text}: {complaint}"


ARCHITECTURES = {
    "llama-3.2-1b": "LlamaForCausalLM",
    "qwen1.5-moe-a2.7b": "Qwen2MoeForCausalLM",
    "qwen2.5-0.5b": "Qwen2ForCausalLM",
    "qwen3-0.6b": "Qwen3ForCausalLM",
    "qwen3-30b-a3b": "Qwen3MoeForCausalLM",
    "qwen3-next-80b-a3b": "Qwen3NextForCausalLM",
    "qwen3-vl-2b": "Qwen3VLForConditionalGeneration",
    "qwen3.5-0.8b": "Qwen3_5ForCausalLM",
    "qwen3.5-35b-a3b": "Qwen3_5MoeForCausalLM",
    "qwen3.5-vl-shrunk": "Qwen3_5ForConditionalGeneration",
}


@pytest.mark.parametrize(("name", "architecture"), ARCHITECTURES.items())
def test_a_config_names_the_class_of_transformers(name, architecture):
    assert config_json(parse_shape(name))["architectures"] == [architecture]


@pytest.mark.parametrize("change", ["layer=2", "layers", "layers=two", "layers=-1", "layers=²", "", "name=1"])
def test_an_option_that_is_none(change):
    with pytest.raises(UserError) as caught:
        find_folder(f"random:qwen3-0.6b,{change}")
    options = (
        "hidden, layers, heads, kv_heads, head_dim, inner, tied, vocab, positions, bits, group, seed, "
        "experts, active, expert_inner, sparse_step, norm_topk, interval, rotary, key_heads, value_heads, "
        "key_dim, value_dim, shared_inner, mtp, tower, tower_width, tower_inner, tower_heads, tower_patch, "
        "tower_side, deep"
    )
    assert str(caught.value) == (
        f"random:qwen3-0.6b,{change}: {change!r} is not OPTION=NUMBER: choose options of {options}, "
        "as in random:qwen3-0.6b,layers=2,bits=4"
    )


# Of the checkpoints on the hub, as their pages say.
PARAMETERS = {
    **{"qwen3-0.6b": 596049920, "qwen3-1.7b": 1720574976, "qwen3-4b": 4022468096, "qwen3-8b": 8190735360},
    **{"qwen3-14b": 14768307200, "qwen3-32b": 32762123264, "qwen3-30b-a3b": 30532122624},
    **{"qwen2.5-0.5b": 494032768, "qwen2.5-7b": 7615616512, "qwen1.5-moe-a2.7b": 14315784192},
    **{"llama-3.1-8b": 8030261248, "llama-3.2-1b": 1235814400},
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_that_of_the_checkpoint_of_its_name(name, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(config_json(SHAPES[name])))
    config, _ = read_config(tmp_path / "config.json")
    assert capsys.readouterr().err == "", "every key is known"
    count = sum(math.prod(shape) for _, shape in parameter_shapes(config))
    assert count == PARAMETERS.get(name, count)


@pytest.mark.parametrize(("name", "repo"), HUB_IDS.items())
def test_a_short_name_is_that_of_a_repository(name, repo):
    owner, _, title = repo.partition("/")
    assert owner in (("mlx-community",) if name.endswith("-4bit") else ("Qwen", "meta-llama"))
    assert re.sub("^meta-|-instruct|-chat|-mlx", "", title.lower()) == name
    assert re.match("(Meta-)?(Qwen|Llama)", title)


def test_the_same_bits_on_every_machine():
    """Recorded: the golden answers of transformers hold only for these very weights."""
    digests = {}
    for name in ("random:qwen3-shrunk", "random:qwen3-shrunk,bits=16", "random:qwen2.5-shrunk,bits=4"):
        content = (find_folder(name) / "model.safetensors").read_bytes()
        digests[name] = hashlib.sha256(content).hexdigest()[:16]
    assert digests == {
        "random:qwen3-shrunk": "f2219c9c28f56293",
        "random:qwen3-shrunk,bits=16": "bdc2e924c36ad25e",
        "random:qwen2.5-shrunk,bits=4": "ff9e473559623b5d",
    }


def test_a_seed_makes_other_weights():
    a, b = (tensors_of(find_folder(f"random:qwen3-shrunk,seed={seed}")) for seed in (0, 1))
    assert all(not mx.array_equal(a[name], b[name]) for name in a)


def test_more_layers_leave_the_first_as_they_are():
    a, b = (tensors_of(find_folder(f"random:qwen3-shrunk,layers={n}")) for n in (1, 2))
    assert a.keys() < b.keys() and all(mx.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_no_parameter_is_neutral_and_all_are_of_a_sane_size(bits):
    checkpoint = load_checkpoint(f"random:qwen2.5-shrunk,bits={bits}", dtype="float32")
    for name, shape in parameter_shapes(checkpoint.config):
        w = checkpoint.weights[name]
        if isinstance(w, QuantizedWeights):
            w = mx.dequantize(w.weight, w.scales, w.biases, w.group_size, w.bits)
        numbers = np.array(w.astype(mx.float32))
        assert numbers.shape == shape and np.isfinite(numbers).all()
        is_norm = name.endswith("norm.weight")
        spread = 0.29 if len(shape) == 1 else 2 * shape[1] ** -0.5
        assert numbers.std() == pytest.approx(spread, rel=0.2), name
        assert numbers.mean() == pytest.approx(1.0 if is_norm else 0.0, abs=0.3 * spread + 0.1), name


@pytest.mark.parametrize("vocab", [259, 320, 5000])
def test_every_id_has_a_text_of_its_own(vocab):
    tokenizer = load_checkpoint(f"random:qwen3-shrunk,layers=1,vocab={vocab}").tokenizer
    texts = [tokenizer.decode([i]) for i in range(259, vocab)]
    assert len(set(texts)) == len(texts) and all(text.strip().isalpha() for text in texts)
    stream = tokenizer.detokenizer
    for token in range(vocab):
        stream.add_token(token)
    stream.finalize()
    assert stream.last_segment.endswith("".join(texts))


def test_a_vocabulary_with_names_for_pictures_has_as_many_as_ids(tmp_path):
    random_checkpoint.write_byte_tokenizer(tmp_path, 330, has_pictures=True)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == [*range(330)]


def test_any_text_is_its_bytes_and_chat_is_marked():
    tokenizer = load_checkpoint("random:qwen3-shrunk").tokenizer
    every_byte = "".join(map(chr, range(0x250))) + "🙂\u0301 bababa"
    assert tokenizer.encode(every_byte) == list(every_byte.encode())
    assert tokenizer.decode(tokenizer.encode(every_byte)) == every_byte
    assert tokenizer.encode("<|im_start|>a<|im_end|>") == [257, ord("a"), 258]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_where_they_are_kept(monkeypatch):
    assert find_folder("random:qwen3-shrunk").is_relative_to(cache_folder() / "random")
    monkeypatch.delenv("TINY_LLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/tiny-llm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "tiny-llm"


def test_an_interrupted_write_leaves_nothing(monkeypatch):
    def interrupted(shape, folder):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(random_checkpoint, "write_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        find_folder("random:qwen3-shrunk,seed=77")
    monkeypatch.undo()
    assert not list(cache_folder().rglob("*seed=77")) and not list(cache_folder().rglob("unfinished-*"))


def test_whoever_is_second_takes_the_first_ones_folder(monkeypatch):
    write = random_checkpoint.write_checkpoint

    def overtaken(shape, folder):
        write(shape, folder)
        monkeypatch.setattr(random_checkpoint, "write_checkpoint", write)
        find_folder("random:qwen3-shrunk,seed=78")

    monkeypatch.setattr(random_checkpoint, "write_checkpoint", overtaken)
    assert (find_folder("random:qwen3-shrunk,seed=78") / "model.safetensors").exists()
    assert not list(cache_folder().rglob("unfinished-*"))


def test_many_processes_at_once():
    name = "random:qwen3-shrunk,seed=79"
    code = f"from tiny_llm_lab.runtime.models.registry import find_folder; print(find_folder({name!r}))"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    folders = {process.communicate()[0].strip() for process in running}
    assert folders == {str(find_folder(name))} and all(process.returncode == 0 for process in running)


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file/random/v2/qwen3-shrunk: cannot write it .*TINY_LLM_CACHE$"):
        find_folder("random:qwen3-shrunk")


# Downloads: what is asked of the hub's client, and one line for whatever it raises


class FakeHub:
    """Stands for `snapshot_download`: what is cached, and what the network does."""

    def __init__(self):
        self.cached = None
        self.online = errors.LocalEntryNotFoundError("offline")
        self.asked = []

    def __call__(self, repo, *, allow_patterns, local_files_only=False):
        self.patterns = list(allow_patterns)
        self.asked.append((repo, local_files_only))
        answer = (self.cached or errors.LocalEntryNotFoundError("no")) if local_files_only else self.online
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


@pytest.fixture
def hub(monkeypatch):
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


@pytest.fixture
def folder(tmp_path):
    return copy_of("random:qwen3-shrunk", tmp_path / "snapshot")


def complaint(name):
    with pytest.raises(UserError) as caught:
        find_folder(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


HUB_NAMES = [("qwen3-0.6b", "Qwen/Qwen3-0.6B"), ("someone/some-model", "someone/some-model")]


@pytest.mark.parametrize(("name", "repo"), HUB_NAMES)
def test_names_of_the_hub(hub, folder, name, repo):
    hub.online = folder
    assert find_folder(name) == folder
    assert hub.asked == [(repo, True), (repo, False)]
    assert {"*.json", "model*.safetensors"} <= {*hub.patterns}
    assert config_of(name) == read_config(folder / "config.json")[0]
    assert hub.patterns == ["config.json"], "no weights for a plan of memory"


def test_what_is_cached_needs_no_network(hub, folder):
    hub.cached = folder
    assert load_checkpoint("qwen3-0.6b").path == folder
    assert hub.asked == [("Qwen/Qwen3-0.6B", True)]


def test_a_part_in_the_cache_is_completed(hub, folder, tmp_path):
    hub.cached = tmp_path / "begun"
    hub.cached.mkdir()
    (hub.cached / "config.json").write_text("{}")
    hub.online = folder
    assert find_folder("qwen3-0.6b") == folder


def test_a_folder_comes_before_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "model").mkdir(parents=True)
    assert find_folder("mine/model") == Path("mine/model")
    assert hub.asked == []


def test_a_short_name_comes_before_a_folder_of_that_name(hub, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_of("random:qwen3-shrunk", tmp_path / "qwen3-0.6b")
    hub.cached = folder
    assert find_folder("qwen3-0.6b") == folder
    assert find_folder("./qwen3-0.6b") == Path("qwen3-0.6b")


def response(status):
    class Response:
        status_code, headers, request = status, dict[str, str](), None

    return Response()


INSTEAD = "use a local folder, default or random:qwen3-0.6b"
NO_NETWORK = f"cannot reach the hub (Got: ConnectError: Name not known): check your network, or {INSTEAD}"
UNKNOWN = "is neither a folder here nor a repository on the hub: check the name"
TERMS = "accept its terms on the hub first, then run hf auth login"
FULL = f"the download failed ([Errno 28] No space left on device): run it again, or {INSTEAD}"


CLIENT_ERRORS = [
    (errors.LocalEntryNotFoundError("Got: ConnectError:\nName not known"), NO_NETWORK),
    (errors.HFValidationError("bad id"), UNKNOWN),
    (errors.RepositoryNotFoundError("404", response=response(404)), UNKNOWN),
    (errors.GatedRepoError("403", response=response(403)), TERMS),
    (OSError(28, "No space left on device"), FULL),
]


@pytest.mark.parametrize(("error", "expected"), CLIENT_ERRORS)
def test_what_the_client_raises(hub, error, expected):
    hub.online = error
    assert complaint("a/b") == f"a/b: {expected}"


def test_without_a_network_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # no server listens there
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = complaint("Qwen/Qwen3-0.6B-that-is-not-cached")
    assert "cannot reach the hub" in message

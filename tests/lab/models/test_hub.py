"""Downloads: what is asked of the hub's client, and one line for whatever it raises."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from tests.helpers.checkpoints import copy_of

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.types import UserError


class FakeHub:
    """Stands for `snapshot_download`: what is cached, and what the network does."""

    def __init__(self):
        self.cached = None
        self.online = errors.LocalEntryNotFoundError("offline")
        self.asked = []

    def __call__(self, repo, *, allow_patterns, local_files_only=False):
        assert "*.json" in allow_patterns and "model*.safetensors" in allow_patterns
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


@pytest.mark.parametrize(
    ("name", "repo"),
    [
        ("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("qwen3-8b-4bit", "mlx-community/Qwen3-8B-4bit"),
        ("qwen2.5-0.5b-4bit", "mlx-community/Qwen2.5-0.5B-Instruct-4bit"),
        ("someone/some-model", "someone/some-model"),
    ],
)
def test_names_of_the_hub(hub, folder, name, repo):
    hub.online = folder
    assert find_folder(name) == folder
    assert hub.asked == [(repo, True), (repo, False)]


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


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.LocalEntryNotFoundError("Got: ConnectError:\nName not known"), NO_NETWORK),
        (errors.HFValidationError("bad id"), UNKNOWN),
        (errors.RepositoryNotFoundError("404", response=response(404)), UNKNOWN),
        (errors.GatedRepoError("403", response=response(403)), TERMS),
        (OSError(28, "No space left on device"), FULL),
    ],
)
def test_what_the_client_raises(hub, error, expected):
    hub.online = error
    assert complaint("a/b") == f"a/b: {expected}"


def test_without_a_network_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # no server listens there
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = complaint("Qwen/Qwen3-0.6B-that-is-not-cached")
    assert "cannot reach the hub" in message

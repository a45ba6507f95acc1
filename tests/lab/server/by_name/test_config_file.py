"""`serve --config FILE`: what a model gets from its table, from above the tables, from what was typed."""

import pytest

from tiny_llm_lab.serving.server import command
from tiny_llm_lab.serving.server.command import ConfigFile
from tiny_llm_lab.types import UserError

FILE = """
port = 8123
max-num-seqs = 4
max_waiting = 7
api-key = ["k1", "k2"]

[models.small]
model = "default"
max-num-seqs = 2
override-generation-config = {temperature = 0.25}
enable-prefix-caching = false
pinned = true

[models."large.2"]
model = "default-hybrid"
kv-cache-memory = "64M"
speculate = "ngram"
"""


def read(folder, text, *typed):
    (folder / "c.toml").write_text(text)
    file = ConfigFile.read(str(folder / "c.toml"))
    args = file.parsed(command._parser(), typed)
    return args, command._of_tables(args, file, typed) if file.models else {}


def test_a_table_wins_over_what_is_above_it_and_what_was_typed_over_both(tmp_path):
    args, models = read(tmp_path, FILE)
    assert (args.port, args.api_key) == (8123, ["k1", "k2"])
    small, large = (models[name].model for name in ("small", "large.2"))
    assert (small.model, large.model) == ("default", "default-hybrid")
    assert (small.engine.config.max_num_seqs, large.engine.config.max_num_seqs) == (2, 4)
    assert (small.engine.enable_prefix_caching, large.engine.enable_prefix_caching) == (False, True)
    assert (small.engine.kv_cache_memory, large.engine.kv_cache_memory) == ("0.250", "64M")
    assert (small.engine.speculate, large.engine.speculate) == ("off", "ngram")
    assert [each.limits.max_waiting for each in models.values()] == [7, 7]
    sampling = [each.chat.override_generation_config for each in models.values()]
    assert sampling == ['{"temperature": 0.25}', "{}"]
    assert [each.is_pinned for each in models.values()] == [True, False]
    args, models = read(tmp_path, FILE, "--max-num-seqs", "9", "--port=1", "--enable-prefix-caching", "true")
    assert args.port == 1
    assert {each.model.engine.config.max_num_seqs for each in models.values()} == {9}
    assert all(each.model.engine.enable_prefix_caching for each in models.values())


def test_a_file_without_tables_serves_one_model(tmp_path):
    args, models = read(tmp_path, 'model = "default-hybrid"\nmax-model-len = 300', "--max-model-len", "200")
    assert (args.model, args.max_model_len, models) == ("default-hybrid", 200, {})


def test_serve_starts_with_what_the_file_and_the_command_say(tmp_path, monkeypatch):
    (tmp_path / "c.toml").write_text("port = 8123\nhost = '127.0.0.7'\nenable-log-requests = true")
    started, logs_requests = [], []

    async def note(start, server):
        started.append(server)

    monkeypatch.setattr(command, "run_server", note)
    monkeypatch.setattr(command, "configure_logging", logs_requests.append)
    typed = ["--config", str(tmp_path / "c.toml"), "--port", "9"]
    args = command._parser().parse_args(typed)
    args.argv = typed
    assert command.run(args) == 0
    [server] = started
    assert (server.host, server.port, logs_requests) == ("127.0.0.7", 9, [True])


ONE = "[models.a]\nmodel = 'default'"


WRONG_FILES = [
    ("port = ", (), "Invalid value"),
    ("port = true", (), "argument --port: expected one argument"),
    ("prot = 1", (), "unrecognized arguments: --prot=1"),
    ("port = 70000", (), "argument --port: must be 0"),
    ("max-num-seqs = 0", (), "argument --max-num-seqs"),
    ("[models]\na = 1", (), "[models.a]: its model is missing"),
    ("models = [1]", (), "write [models.NAME]"),
    ("[models.a]\npinned = 1\nmodel = 'default'", (), "[models.a]: pinned must be true or false"),
    ("[models.a]\nmax-model-len = 9", (), "[models.a]: its model is missing"),
    (f"{ONE}\nport = 9", (), "[models.a]: port is not of one model"),
    (f"{ONE}\nidle-unload = 9", (), "[models.a]: idle_unload is not"),
    ("[models.a]\nmodel = 'b=default'", (), "[models.a]: write [models.NAME]"),
    (f"{ONE}\ntensor-parallel-size = 2", (), "[models.a]: tensor_parallel_size is not"),
    (f'{ONE}\nconfig = "x"', (), "[models.a]: config is not of one model"),
    (f"{ONE}\nspeculat = 'mtp'", (), "[models.a]: unrecognized arguments"),
    ("[models.'a b']\nmodel = 'default'", (), "[models.a b]: write [models.NAME]"),
    (ONE, ("--model", "b=default"), "leave out --model"),
    ("model = 'default-hybrid'\n[models.a]\nmodel = 'default'", (), "leave out --model"),
    ("config = 'other.toml'", (), "config and models are no flags"),
    ("override-generation-config = {temperature = -1}", (), "temperature"),
    ("override-generation-config = {top_x = 1}", (), "no other keys than temperature"),
    ('override-generation-config = {top_k = "x"}', (), "top_k"),
]


@pytest.mark.parametrize(("text", "typed", "said"), WRONG_FILES)
def test_a_wrong_file_is_one_line_that_names_the_place(tmp_path, text, typed, said):
    with pytest.raises(UserError) as told:
        read(tmp_path, text, *typed)
    assert said in str(told.value) and "c.toml" in str(told.value) and "\n" not in str(told.value)


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "latin").write_bytes(b'model = "\xe9"')
    for name, said in (("none", "No such file"), ("latin", "utf-8"), (".", "Is a directory")):
        with pytest.raises(UserError, match=said):
            ConfigFile.read(str(tmp_path / name))

"""Every flag of every command: an empty value, as of a script's variable that is not set, and its default."""

import argparse
import re

import pytest

from tiny_llm_lab import LLM
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.offline import command
from tiny_llm_lab.types import UserError
from tools.commands import EVERY

NAMED = "--prefix-cache-dir --out --model --input --output --ssl-certfile --prompts --server".split()


def flags_of(parser):
    """Those that take a value."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from flags_of(each)
        elif action.option_strings and action.nargs != 0:
            yield action


FLAGS = {name: list(flags_of(EVERY.parser(name))) for name in EVERY}


def test_the_table_knows_paths_and_models():
    found = {flag for actions in FLAGS.values() for action in actions for flag in action.option_strings}
    assert found.issuperset(NAMED)


def test_a_default_is_one_of_the_choices():
    limited = [each for actions in FLAGS.values() for each in actions if each.choices]
    made = [each for each in limited if each.default is argparse.SUPPRESS]
    defaults = [re.findall(r"\(default: (.*)\)$", each.help) for each in made]
    assert ["qwen3"] in defaults
    assert [each.dest for each, [name] in zip(made, defaults, strict=True) if name not in each.choices] == []


@pytest.mark.parametrize("name", list(EVERY))
def test_an_empty_value_is_refused(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for action in FLAGS[name]:
        if action.metavar in ("TEXT", "FLAGS"):
            continue
        flag = action.option_strings[-1]
        given = [""] if action.nargs in (None, "?", "+", "*") else [""] * int(action.nargs)
        assert cli.main([name, flag, *given], EVERY) == 2, flag
        [line] = capsys.readouterr().err.splitlines()
        assert "must not be empty: give a value, or leave it out" in line and flag in line
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_and_an_empty_folder_of_the_library():
    with pytest.raises(UserError, match="prefix_cache_dir must not be empty: name a folder"):
        LLM("default", prefix_cache_dir="")


def test_names_of_a_batch(tmp_path, monkeypatch):
    """OpenAI's and vLLM's example files name other models."""
    seen = []

    def start(settings, names):
        seen.append(names)
        raise UserError("enough")

    monkeypatch.setattr(command, "start_model", start)
    file = tmp_path / "batch.jsonl"
    file.write_text('{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}}\n')
    flags = ["--input", str(file), "--output", str(tmp_path / "answers"), "--served-model-name"]
    assert cli.main(["batch", *flags, "meta-llama/x", "--served-model-name", "gpt-4o"]) == 2
    assert seen == [("meta-llama/x", "gpt-4o")]

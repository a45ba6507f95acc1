"""What `./pdmw` and the pages call a command is one, and each command is there."""

import re
import tomllib
from pathlib import Path

from tiny_llm_lab.cli import dispatch as cli
from tools.commands import EVERY

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pdm"]["scripts"])
FOLDERS = (".", "docs", "book/src", "tools", "benchmarks", "recipes/default_model", ".github")
NO_COMMANDS = {"python", "COMMAND", "X"}  # a program that PDM runs, and placeholders


def test_scripts_and_catalogues_are_the_same():
    assert set(EVERY) == SCRIPTS


def test_pdmw_prints_every_command_and_nothing_else(capsys):
    assert cli.main([]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    described = [line.split()[2] for line in lines if line.startswith("  ./pdmw run ")]
    named = [name for line in lines[len(described) :] for name in line.partition(": ")[2].split(", ")]
    assert len(described) == 12 and "--help" in last
    assert sorted([*described, *named]) == sorted(SCRIPTS)


def test_the_page_of_commands_has_a_section_for_each():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8").partition("<!-- commands -->")[2]
    page = page.partition("<!-- end of commands -->")[0]
    assert set(re.findall(r"^## (\S+)$", page, re.MULTILINE)) == SCRIPTS


def test_every_command_that_a_page_names_exists():
    pages = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.md")]
    found = {
        (path.name, name)
        for path in pages
        for name in re.findall(r"(?:pdmw|pdm) run ([\w-]+)", path.read_text("utf-8"))
    }
    assert {name for _, name in found} > {"main", "serve", "check", "bench-engine", "diverge"}
    assert sorted((page, name) for page, name in found if name not in SCRIPTS | NO_COMMANDS) == []

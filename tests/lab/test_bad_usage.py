"""What commands refuse before they compute anything: exit code 2, and one line with the cure."""

import shlex
import tomllib

import pytest
from tests.helpers.golden import GOLDEN

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.types.packages import PACKAGES
from tools.commands import EVERY

REFUSED = tomllib.loads((GOLDEN / "refused_commands.toml").read_text("utf-8"))
# Which no line of that file can hold.
REFUSED["early"]["main"]["--prompt caf\udce9"] = "the prompt is not UTF-8 text: convert it first"
REFUSED["early"]["batch-main"][f"--max-tokens 1{'0' * 400}"] = "2147483647, not a number of 401 digits"
CASES = [
    pytest.param(when, f"{command} {flags}", said, id=f"{command} {flags}".strip()[:60])
    for when, commands in REFUSED.items()
    for command, rows in commands.items()
    for flags, said in rows.items()
]


@pytest.mark.parametrize(("when", "words", "said"), CASES)
def test_bad_usage_is_one_line(when, words, said, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(PACKAGES, "mine", "tiny_llm_that_is_not_there")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    if when == "early":
        monkeypatch.setattr(model_options, "load_checkpoint", lambda *_: pytest.fail("a model was loaded"))
    assert cli.main(shlex.split(words.replace("{folder}", str(tmp_path))), EVERY) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("step times are estimated")]
    assert out == "" and lines[-1].startswith("error: ") and said in lines[-1]
    assert when == "begun" or len(lines) == 1, "nothing was said or done before"
    assert when != "early" or not [*tmp_path.iterdir()], "nothing is written"

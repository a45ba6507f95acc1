"""`report --quick`, all of it."""

import subprocess
import sys

import pytest


@pytest.mark.long
def test_a_rehearsal(tmp_path):
    arguments = ("-m", "tiny_llm_lab", "report", "--quick", "--out", str(tmp_path / "report"))
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report" / "report.md").read_text()
    assert "✗ failed" not in page and "| decode, 8 x 128 |" in page

"""Two prompts: one that is computed in one piece, and one of several chunks."""

import pytest


@pytest.fixture
def prompts(tmp_path):
    notes = "Mira keeps the brass compass in the attic. " * 8
    file = tmp_path / "prompts.txt"
    file.write_text(f"Who are you?\nRead these notes. {notes} Where does Mira keep the brass compass?\n")
    return ["--prompts", str(file), "--max-tokens", "6"]

"""What a package says it exports is there."""

import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for package in ("tiny_llm", "tiny_llm_ref", "tiny_llm_lab")
    for path in sorted((SOURCE / package).rglob("*.py"))
    if "\n__all__" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_exists_once(name):
    module = importlib.import_module(name)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []
    assert len(set(module.__all__)) == len(module.__all__)

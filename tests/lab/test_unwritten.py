"""A solution in the middle of the course computes without the models that it has yet to write."""

import importlib
import sys
from pathlib import Path

import pytest

from tiny_llm_lab.runtime.models.loading import load_checkpoint
from tiny_llm_lab.runtime.native import runtime as module
from tiny_llm_lab.runtime.native.runtime import is_unwritten
from tiny_llm_lab.runtime.native.settings import VARIABLE
from tiny_llm_ref.models import build
from tiny_llm_ref.models.model import Qwen
from tiny_llm_ref.models.qwen import QwenModel


@pytest.mark.parametrize(
    ("body", "stub"), [('raise NotImplementedError("task 2.5.6")', True), ("...", False)]
)
def test_a_module_with_a_stub_is_unwritten_once_it_is_imported(
    body: str, stub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "learner" / "models").mkdir(parents=True)
    (tmp_path / "learner" / "models" / "model.py").write_text(f"def build():\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_unwritten("learner.models", "models.model"), "nothing has imported it"
    try:
        importlib.import_module("learner.models.model")
        assert is_unwritten("learner.models", "models.model") == stub
        assert not is_unwritten("learner.models", "models.stack")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "learner"]:
            del sys.modules[name]


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("mode", ["auto", "cpp"])
@pytest.mark.parametrize("file", ["models.model", "models.stack", ""])
def test_what_is_unwritten_is_left_out_unless_kernels_are_asked_for(
    mode: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, mode)
    for each in (module, build):
        monkeypatch.setattr(each, "is_unwritten", lambda package, name: name == file and mode == "auto")
    model = build.build_model(load_checkpoint("default"))
    assert type(model) is (QwenModel if file == "models.model" and mode == "auto" else Qwen)
    has_stack = isinstance(model, Qwen) and model.stack is not None
    assert has_stack == (mode == "cpp" or not file)

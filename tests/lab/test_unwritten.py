"""A solution in the middle of the course computes without the models that it has yet to write."""

import importlib
import sys
from pathlib import Path

import pytest

from tiny_llm_lab.runtime.models.loading import load_checkpoint
from tiny_llm_lab.runtime.native import runtime as module
from tiny_llm_lab.runtime.native.runtime import is_unwritten
from tiny_llm_lab.runtime.native.settings import VARIABLE
from tiny_llm_ref import build_model
from tiny_llm_ref.models.ops_model import OpsModel
from tiny_llm_ref.models.qwen import QwenModel
from tiny_llm_ref.models.stack_model import StackModel


@pytest.mark.parametrize(
    ("body", "stub"), [('raise NotImplementedError("task 2.5.6")', True), ("...", False)]
)
def test_a_module_with_a_stub_is_unwritten_once_it_is_imported(
    body: str, stub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "learner" / "models").mkdir(parents=True)
    (tmp_path / "learner" / "models" / "ops_model.py").write_text(f"def build():\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_unwritten("learner.models", "models.ops_model"), "nothing has imported it"
    try:
        importlib.import_module("learner.models.ops_model")
        assert is_unwritten("learner.models", "models.ops_model") == stub
        assert not is_unwritten("learner.models", "models.stack_model")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "learner"]:
            del sys.modules[name]


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("mode", ["auto", "cpp"])
@pytest.mark.parametrize("file", ["models.ops_model", "models.stack_model", ""])
def test_what_is_unwritten_is_left_out_unless_kernels_are_asked_for(
    mode: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, mode)
    monkeypatch.setattr(module, "is_unwritten", lambda package, name: name == file)
    wanted = {"models.ops_model": QwenModel, "models.stack_model": OpsModel}
    kind = wanted.get(file, StackModel) if mode == "auto" else StackModel
    assert type(build_model(load_checkpoint("default"))) is kind

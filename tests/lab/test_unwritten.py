"""A solution in the middle of the course computes without the models that it has yet to write."""

import importlib
import sys

import pytest

from tiny_llm_lab.runtime.models.loading import load_checkpoint
from tiny_llm_lab.runtime.native import runtime as module
from tiny_llm_lab.runtime.native.runtime import is_unwritten
from tiny_llm_lab.runtime.native.settings import VARIABLE
from tiny_llm_ref.models import build
from tiny_llm_ref.models.model import Qwen
from tiny_llm_ref.models.qwen import QwenModel

STUBS = [('raise NotImplementedError("task 2.5.6")', True), ("...", False)]


@pytest.mark.parametrize(("body", "stub"), STUBS)
def test_a_stub_is_unwritten_once_its_module_is_imported(body, stub, tmp_path, monkeypatch):
    (tmp_path / "learner" / "models").mkdir(parents=True)
    (tmp_path / "learner" / "models" / "model.py").write_text(
        f'def build():\n    {body}\n\n\ndef later():\n    raise NotImplementedError("task 3.2.2")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_unwritten("learner.models", "models.model", "build"), "nothing has imported it"
    try:
        importlib.import_module("learner.models.model")
        assert is_unwritten("learner.models", "models.model", "build") == stub
        assert not is_unwritten("learner.models", "models.stack", "build")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "learner"]:
            del sys.modules[name]


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("mode", ["auto", "cpp"])
@pytest.mark.parametrize("file", ["models.model", "models.stack", ""])
def test_what_is_unwritten_is_left_out_unless_kernels_are_asked_for(mode, file, monkeypatch):
    monkeypatch.setenv(VARIABLE, mode)

    def is_missing(package, name, symbol):
        return name == file

    for each in (module, build):
        monkeypatch.setattr(each, "is_unwritten", is_missing)
    model = build.build_model(load_checkpoint("default"))
    if file == "models.model":
        assert type(model) is QwenModel, "week 1's, which has no operators"
    else:
        assert type(model) is Qwen and (model.stack is not None) == (mode == "cpp" or not file)

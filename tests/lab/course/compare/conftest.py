"""The small package, recorded."""

import contextlib
import importlib
import sys

import pytest
from tests.helpers.trees import course_files

from tiny_llm_lab.course.compare.calls import Recorder


@pytest.fixture
def record(tmp_path, monkeypatch):
    """record(work, old, new): what `work` calls of the package with a line changed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def run(work, old="", new=""):
        source = course_files("recorded")["model.py"]
        name = f"solution_{len(names)}"
        names.append(name)
        assert not old or source.count(old) == 1
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "model.py").write_text(source.replace(old, new) if old else source)
        importlib.invalidate_caches()
        recorder = Recorder(name)
        with recorder.recording():
            with contextlib.suppress(ZeroDivisionError):
                work(importlib.import_module(f"{name}.model"))
            return recorder.take()

    yield run
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]

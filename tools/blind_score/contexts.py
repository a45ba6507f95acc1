"""A pytest plugin that writes down which tests run which lines, and how long each takes.

`BLIND_SCORE_MAP` names the folder that the workers write to, `BLIND_SCORE_CODE` the folders of code, one
a line.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import coverage
import pytest


class Contexts:
    """One context a test, for the code of one part."""

    def __init__(self, folder: Path, code: list[str]) -> None:
        self._worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._folder = folder
        self._seconds: dict[str, float] = {}  # of each test
        self._failed: set[str] = set()
        self._coverage = coverage.Coverage(
            data_file=str(folder / f"lines-{self._worker}"), config_file=False, source=code
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        report = {"seconds": self._seconds, "failed": sorted(self._failed)}
        (self._folder / f"tests-{self._worker}.json").write_text(json.dumps(report), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ["BLIND_SCORE_MAP"])
    config.pluginmanager.register(Contexts(folder, os.environ["BLIND_SCORE_CODE"].splitlines()), "contexts")


_MOST_S: Final = 60.0  # of tests that run a line: the fastest are tried first, up to this


class LineMap:
    """Which tests run a line, the fastest first; and which fail by themselves."""

    def __init__(self, folder: Path) -> None:
        """Reads what the workers of a run have written to `folder`. Sets failed."""
        self._data = coverage.CoverageData(no_disk=True)
        for path in sorted(folder.glob("lines-*")):
            part = coverage.CoverageData(str(path))
            part.read()
            self._data.update(part)
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("tests-*.json")]
        self._seconds: dict[str, float] = {}
        self.failed = sorted({name for report in reports for name in report["failed"]})
        for report in reports:
            self._seconds |= report["seconds"]

    def tests_of(self, file: Path, line: int) -> list[str]:
        """The node ids of the fastest tests that run `line` of `file`, of a minute in all."""
        names = set(self._data.contexts_by_lineno(str(file)).get(line, [])) - {"", *self.failed}
        found, total_s = list[str](), 0.0
        for name in sorted(names, key=lambda name: (self._seconds.get(name, 0.0), name)):
            total_s += self._seconds.get(name, 0.0)
            if found and total_s > _MOST_S:
                break
            found.append(name)
        return found

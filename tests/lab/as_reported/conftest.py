"""The two servers of reports: the shipped model, and one that says what a report says."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.helpers.real_server import client_of
from tests.helpers.scripted_client import scripted_client
from tests.lab.as_reported.report import Report

from tiny_llm_lab.serving.options.engine_settings import ModelSettings

Try = Callable[[Report], None]
Ask = Callable[..., tuple[int, str]]  # of a path and the fields of a body


@pytest.fixture(scope="module")
def on_shipped_model(kernels_on: None) -> Iterator[Try]:
    """Sends a report to the model of the package and checks its answer."""
    with client_of(ModelSettings()) as client:
        yield lambda report: _try(client, report)


@pytest.fixture(scope="module")
def ask_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ask]]:
    """ask_with(template): posts bodies to a model with that template, the same one for all tests."""
    started: dict[str, Ask] = {}
    with ExitStack() as stack:

        def of(template: str) -> Ask:
            if template not in started:
                folder = tmp_path_factory.mktemp(template) / "qwen"
                started[template] = stack.enter_context(_prompts_of(folder, template))
            return started[template]

        yield of


@pytest.fixture
def on_scripted_model(tmp_path: Path) -> Try:
    """Sends a report to a model that says what it says, with its template."""

    def run(report: Report) -> None:
        with scripted_client(tmp_path / "qwen", report.says, report.template) as server:
            server.engine.finish_reason = report.finish
            _try(server.site, report)

    return run


@contextmanager
def _prompts_of(folder: Path, template: str) -> Iterator[Ask]:
    """Posts a body; the status, and the prompt or the error."""
    with scripted_client(folder, template=template) as server:

        def ask(path: str, **body: Any) -> tuple[int, str]:
            answer = server.post(path, json=body)
            return answer.status_code, server.prompt() if answer.status_code == 200 else answer.text

        yield ask


def _try(client: httpx2.Client, report: Report) -> None:
    report.check(client.post(report.path, json=dict(report.body), headers=dict(report.headers)))

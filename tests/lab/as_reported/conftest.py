"""The servers of reports: the shipped model, and models that show their prompts, each with a template."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.helpers.real_server import client_of
from tests.helpers.whole_answers import scripted_servers
from tests.lab.as_reported.report import Report

from tiny_llm_lab.serving.options.engine_settings import ModelSettings

Try = Callable[[Report], None]
Ask = Callable[..., tuple[int, str]]  # of a path and the fields of a body


@pytest.fixture(scope="module")
def on_shipped_model(kernels_on: None) -> Iterator[Try]:
    """Sends a report to the model of the package and checks its answer."""
    with client_of(ModelSettings()) as client:
        yield lambda report: report.check(client.post(report.path, json=dict(report.body)))


@pytest.fixture(scope="module")
def ask_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ask]]:
    """ask_with(template): posts bodies to that model; the status, and the prompt or the error."""
    with scripted_servers(tmp_path_factory.mktemp("servers")) as servers:

        def of(template: str) -> Ask:
            server = servers(template)

            def ask(path: str, **body: Any) -> tuple[int, str]:
                answer = server.post(path, json=body)
                return answer.status_code, server.prompt() if answer.status_code == 200 else answer.text

            return ask

        yield of

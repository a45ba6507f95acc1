"""The two servers of reports: the shipped model, and one that says what a report says."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.checkpoints import edit_json
from tests.helpers.fake_engine import http_server
from tests.helpers.scripted_engine import ScriptedEngine, scripted_server
from tests.lab.as_reported.report import Report

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.serving.server.api import start_model
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.settings import ServerSettings

Try = Callable[[Report], None]
Ask = Callable[..., tuple[int, str]]  # of a path and the fields of a body
TEMPLATES = Path(__file__).parents[2] / "helpers" / "templates"


@contextmanager
def client_of(model: str, names: tuple[str, ...] = (), **settings: Any) -> Iterator[httpx2.Client]:
    """A client of a server of `model`, with these settings of its engine."""
    chosen = ModelSettings(model=model, engine=EngineSettings(**settings))
    app = create_app(lambda: start_model(chosen, names), ServerSettings(drain_s=0))
    with http_server(app) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def on_shipped_model(kernels_on: None) -> Iterator[Try]:
    """Sends a report to the model of the package and checks its answer."""
    with client_of("default") as client:
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
        folder, engine = tmp_path / "qwen", ScriptedEngine()
        qwen_like_folder(folder)
        if report.template:
            text = (TEMPLATES / f"{report.template}.jinja").read_text()
            edit_json(folder / "tokenizer_config.json", chat_template=text)
        engine.script, engine.finish_reason = report.says, report.finish
        with (
            scripted_server(folder, engine) as url,
            httpx2.Client(base_url=url.removesuffix("/v1"), timeout=60) as client,
        ):
            _try(client, report)

    return run


@contextmanager
def _prompts_of(folder: Path, template: str) -> Iterator[Ask]:
    """Posts a body; the status, and the prompt or the error."""
    qwen_like_folder(folder)
    edit_json(folder / "tokenizer_config.json", chat_template=(TEMPLATES / f"{template}.jinja").read_text())
    engine, tokenizer = ScriptedEngine(), load_checkpoint(folder).tokenizer
    engine.script = "ok"
    with scripted_server(folder, engine) as url, httpx2.Client(base_url=url, timeout=60) as client:

        def ask(path: str, **body: Any) -> tuple[int, str]:
            answer = client.post(path, json=body)
            is_right = answer.status_code == 200
            return answer.status_code, tokenizer.decode(engine.prompts[-1]) if is_right else answer.text

        yield ask


def _try(client: httpx2.Client, report: Report) -> None:
    report.check(client.post(report.path, json=dict(report.body), headers=dict(report.headers)))

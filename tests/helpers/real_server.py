"""Servers of real models, and their clients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx2
import openai
from tests.helpers.fake_engine import http_server

from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.api import start_model
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.settings import ChatSettings, ServerSettings


@contextmanager
def client_of(
    settings: ModelSettings, names: Sequence[str] = (), chat: ChatSettings = ChatSettings()
) -> Iterator[httpx2.Client]:
    """A client of a server of a model."""
    app = create_app(lambda: start_model(settings, names, chat=chat), ServerSettings(drain_s=0))
    with http_server(app) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        yield client


@contextmanager
def openai_client_of(settings: ModelSettings, names: Sequence[str] = ()) -> Iterator[openai.OpenAI]:
    """The real `openai` client of such a server."""
    with (
        client_of(settings, names) as http,
        openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="x") as client,
    ):
        yield client

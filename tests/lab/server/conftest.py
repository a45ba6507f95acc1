"""A server whose model says what it is told, and one of the shipped model, for each file that needs one."""

import pytest
from tests.helpers.real_server import openai_client_of
from tests.helpers.scripted_client import scripted_client

from tiny_llm_lab.serving.options.engine_settings import ModelSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with scripted_client(tmp_path_factory.mktemp("scripted") / "qwen") as client:
        yield client


@pytest.fixture(scope="module")
def client(kernels_on):
    """The `openai` client of the model that is served by default."""
    with openai_client_of(ModelSettings()) as client:
        yield client

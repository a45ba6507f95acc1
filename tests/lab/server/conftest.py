"""A server whose model says what it is told, for each file of tests that needs one."""

import pytest
from tests.helpers.scripted_client import scripted_client


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with scripted_client(tmp_path_factory.mktemp("scripted") / "qwen") as client:
        client.engine.script = "ok"
        yield client

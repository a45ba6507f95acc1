"""A server as `serve` runs it, in the main thread, until a client sends the signal that ends it."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

from tests.helpers.fake_engine import FakeEngine, start_fake, wait_until

from tiny_llm_lab.serving.server.run_server import run_server
from tiny_llm_lab.serving.server.settings import RequestLimits, ServerSettings


def serve_and(
    client: Callable[[int], None], engine: FakeEngine, drain_s: float, caplog: Any, **given: Any
) -> None:
    """Run a server in this thread, and `client` with its port in another, until a signal ends the server."""
    failures: list[BaseException] = []

    def run_client() -> None:
        try:
            wait_until(lambda: "tiny-llm serves" in caplog.text)
            found = re.search(r"127\.0\.0\.1:(\d+)", caplog.text)
            assert found is not None
            client(int(found[1]))
        except BaseException as error:
            failures.append(error)
            engine.permit(10_000)  # the server ends now: a second signal would end the tests
            if "stopping" not in caplog.text:
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run_client)
    with caplog.at_level("INFO", "tiny_llm"):
        thread.start()
        settings = ServerSettings(port=0, drain_s=drain_s, **given)
        limits = RequestLimits(keep_alive_s=0)
        asyncio.run(run_server(lambda: start_fake(engine, limits), settings))
        thread.join()
    assert not failures, failures

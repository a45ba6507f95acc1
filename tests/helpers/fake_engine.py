"""An engine without a model, stepped by hand or as fast as it goes, and a server around it."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI
from tests.helpers.toy import QWEN3, VOCAB, ByteTokenizer

from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.loop import BuiltEngine
from tiny_llm_lab.serving.async_engine.messages import EngineFacts
from tiny_llm_lab.serving.async_engine.model import EngineThread, run_model
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.server.api import ServedModel
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.prompts.watch import PromptWatch
from tiny_llm_lab.serving.server.run_server import HttpProtocol, listen
from tiny_llm_lab.serving.server.settings import RequestLimits, ServerSettings
from tiny_llm_lab.types import (
    Completion,
    EngineOptions,
    EngineOutput,
    OnStep,
    SamplingParams,
    SchedulerConfig,
    Timing,
    UserError,
)


class FakeEngine:
    """Gives every request a token a step, "a" in its first, "b" in its second; `max_num_seqs` at a time.

    `steps` counts the steps, `served` the tokens by request, `aborted` lists who left early.
    """

    def __init__(self, config: SchedulerConfig = SchedulerConfig(), by_hand: bool = False) -> None:
        self.core, self.config = self, config
        self.scheduler = SimpleNamespace(
            pool=SimpleNamespace(num_blocks=1024, block_size=16, num_free=1024), running=(), waiting=()
        )
        self.prefix_cache, self.options = None, EngineOptions()
        self.requests: dict[str, tuple[SamplingParams, int]] = {}
        self.sampling: dict[str, SamplingParams] = {}  # of all requests ever
        self.classes: list[str] = []  # the priority classes of all requests
        self.priorities: list[int] = []
        self.served: dict[str, int] = {}
        self.aborted: list[str] = []
        self.steps = 0
        self.failure: BaseException | None = None  # of the next step
        self._by_hand = by_hand
        self._permits = threading.Semaphore(0)

    def permit(self, steps: int = 1) -> None:
        """Let so many steps run, where they are made by hand."""
        self._permits.release(steps)

    @property
    def has_requests(self) -> bool:
        return bool(self.requests)

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams, **options: Any) -> None:
        if request_id in self.requests:
            raise UserError("in use")
        self.requests[request_id] = (sampling, len(prompt))
        self.sampling[request_id] = sampling
        self.classes.append(options["priority_class"])
        self.priorities.append(options["priority"])
        self.served[request_id] = 0

    def abort(self, request_id: str) -> bool:
        if self.requests.pop(request_id, None) is None:
            return False
        self.aborted.append(request_id)
        return True

    def step(self) -> list[EngineOutput]:
        # Not for ever: commands such as an abort come in between steps.
        if self._by_hand and not self._permits.acquire(timeout=0.005):
            return []
        self.steps += 1
        if self.failure is not None:
            failure, self.failure = self.failure, None
            self.requests.clear()
            raise failure
        return [self._output(name) for name in list(self.requests)[: self.config.max_num_seqs]]

    def release(self) -> None:
        self.requests.clear()

    def _output(self, name: str) -> EngineOutput:
        sampling, num_prompt_tokens = self.requests[name]
        number = self.served[name]
        self.served[name] = number + 1
        completion = None
        if number + 1 == sampling.max_tokens:
            del self.requests[name]
            ids = tuple(range(97, 97 + number + 1))
            completion = Completion(0, num_prompt_tokens, ids, "", "length", Timing(0.0))
        return EngineOutput(name, (97 + number % 26,), chr(97 + number % 26), completion)


@dataclass
class FakeServer:
    """Where the server is, and what it works with."""

    url: str
    engine: FakeEngine
    app: FastAPI
    port: int

    @property
    def async_engine(self) -> AsyncEngine:
        engine: AsyncEngine = self.app.state.served.engine
        return engine

    def post(self, path: str, **body: Any) -> httpx2.Response:
        """The answer to a body of JSON."""
        with httpx2.Client(timeout=60) as client:
            return client.post(self.url + path, json=body)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        with httpx2.Client(timeout=60) as client:
            return client.get(self.url + path, headers=headers)


async def start_fake(engine: FakeEngine, limits: RequestLimits | None = None, **given: Any) -> ServedModel:
    """The model that `engine` serves: one token a byte, unless a tokenizer and a model are given."""
    tokenizer = given.pop("tokenizer", None) or ByteTokenizer()
    model = given.pop("model", None) or replace(QWEN3, vocab_size=VOCAB)
    facts = EngineFacts(model, engine.config, 1024, 16, 1024)
    served: dict[str, Any] = {"names": ("fake", "other"), "limits": limits or RequestLimits(), **given}
    watch = PromptWatch()
    running = await run_model(on_thread(built(engine, facts, tokenizer)), (watch,))
    return ServedModel(engine=running.engine, tokenizer=tokenizer, watch=watch, **served)


def on_thread(made: BuiltEngine | Callable[[OnStep], BuiltEngine]) -> EngineThread:
    """A link to an engine, or to one that its thread makes."""
    return EngineThread(made if callable(made) else lambda on_step: made)


def built(engine: Any, facts: EngineFacts, tokenizer: Any = None) -> BuiltEngine:
    """An engine as its loop takes it."""
    forms = Grammars(tokenizer, facts.model.vocab_size)
    return BuiltEngine(engine, facts, forms, MemoryKeeper(), tokenizer)


@contextmanager
def fake_server(
    engine: FakeEngine | None = None,
    settings: ServerSettings | None = None,
    limits: RequestLimits | None = None,
    protocol: type[HttpProtocol] = HttpProtocol,
) -> Iterator[FakeServer]:
    """A server on a port of its own, in a thread."""
    engine = engine or FakeEngine()
    settings = settings or ServerSettings(drain_s=0)
    app = create_app(lambda: start_fake(engine, limits), settings)
    with http_server(app, protocol) as port:
        yield FakeServer(f"http://127.0.0.1:{port}", engine, app, port)


@contextmanager
def http_server(app: FastAPI, protocol: type[HttpProtocol] = HttpProtocol) -> Iterator[int]:
    """Serve `app` from a thread, on the port that this gives."""
    config = uvicorn.Config(
        app, http=protocol, ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    sock = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="http")
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started, "the server did not start"
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


def wait_until(holds: Callable[[], object], timeout_s: float = 30) -> None:
    """Return when `holds`; fail when it never does."""
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.002)


@contextmanager
def raw_post(
    port: int, body: dict[str, Any] | bytes, path: str = "/v1/completions"
) -> Iterator[socket.socket]:
    """A socket on which a body was sent to `path`."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head.encode() + content)
        yield connection


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """What comes up to and with `end`, or until the connection is closed."""
    read = b""
    while end not in read and (more := connection.recv(65536)):
        read += more
    return read

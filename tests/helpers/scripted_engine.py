"""A server whose model says what the test wants, with a tokenizer and a template like Qwen's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.helpers.fake_engine import FakeEngine, http_server, start_fake

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.runtime.pictures.processor import PictureProcessor
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.settings import ChatSettings, ServerSettings
from tiny_llm_lab.types import Completion, EngineOutput, FinishReason, SamplingParams, Timing
from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures, PictureConfig
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk


class SeesPictures(NoPrefixDisk):
    """Takes pictures, which nothing computes."""

    def with_pictures(self, token_ids: Sequence[int], pictures: Sequence[Picture]) -> NoPictures:
        return NO_PICTURES


class ScriptedEngine(FakeEngine):
    """Answers every request with `script`, `stride` characters a step."""

    script, stride = "", 3
    finish_reason: FinishReason = "stop"
    token_ids: tuple[int, ...] = ()  # of all the answer, a stop string included
    prompts: list[list[int]]  # of all requests
    asked: list[SamplingParams]

    def __init__(self) -> None:
        super().__init__()
        self.prompts, self.asked = [], []

    def add(self, request_id: str, prompt: Sequence[int], sampling: SamplingParams, **options: Any) -> None:
        super().add(request_id, prompt, sampling, **options)
        self.prompts.append(list(prompt))
        self.asked.append(sampling)

    def _output(self, name: str) -> EngineOutput:
        start = self.served[name]
        self.served[name] = end = start + self.stride
        text, completion = self.script[start:end], None
        if end >= len(self.script):
            del self.requests[name]
            completion = Completion(0, 1, self.token_ids, self.script, self.finish_reason, Timing(0.0))
        return EngineOutput(name, tuple(text.encode()), text, completion)


@contextmanager
def scripted_server(
    folder: Path,
    engine: ScriptedEngine,
    chat: ChatSettings = ChatSettings(),
    pictures: PictureConfig | None = None,
) -> Iterator[str]:
    """The address of a server of the checkpoint in `folder`; with `pictures` its model is said to see."""
    checkpoint = load_checkpoint(folder)
    model = replace(checkpoint.config, pictures=pictures)
    given: dict[str, Any] = {"tokenizer": checkpoint.tokenizer, "model": model, "chat": chat}
    if pictures is not None:
        given["processor"] = PictureProcessor(folder, pictures)
        engine.options = replace(engine.options, prefix_disk=SeesPictures())
    app = create_app(lambda: start_fake(engine, names=("scripted",), **given), ServerSettings(drain_s=0))
    with http_server(app) as port:
        yield f"http://127.0.0.1:{port}/v1"

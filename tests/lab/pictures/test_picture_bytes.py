"""How many bytes of pictures the requests of a server hold."""

import asyncio

import numpy as np
import pytest
from tests.helpers.fake_engine import FakeEngine, start_fake

from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.api import ApiError
from tiny_llm_lab.types import SamplingParams, UserError
from tiny_llm_lab.types.computing.pictures import NO_PICTURES
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk


def test_pictures_are_refused_while_others_hold_too_many_bytes(monkeypatch):
    """Patches are as large as 12 MiB a picture, and stay in memory until their answer ends."""
    monkeypatch.setattr(NoPrefixDisk, "with_pictures", lambda *_: NO_PICTURES)

    async def scenario():
        engine = FakeEngine(by_hand=True)
        served = await start_fake(engine)
        large = tuple(Picture(np.broadcast_to(np.uint8(0), (16_384, 3, 16, 16)), 128, 128) for _ in range(25))

        async def ask(name, pictures):
            return await Answers.start(served, [[1]], SamplingParams(), name, pictures=pictures)

        first = await ask("a", large)
        with pytest.raises(ApiError, match="300 MiB of pictures") as caught:
            await ask("b", large)
        assert caught.value.status == 429 and caught.value.headers == {"Retry-After": "1"}
        with pytest.raises(UserError, match="in use"):
            await ask("a", large[:10])
        others = [await ask("c", large[:17]), await ask("d", ())]
        for each in (first, *others):
            each.close()
            each.close()
        assert served.engine.picture_bytes == 0
        (await ask("e", large * 2)).close()  # alone, as many as a request may have
        await served.engine.stop()

    asyncio.run(scenario())

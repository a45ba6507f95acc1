"""Prompts, and runs of week 2's loop that answer them."""

import random

from tests.helpers.fakes import FakeClock
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import Prompt, SamplingParams

TOKENIZER = ByteTokenizer()
UNCHUNKED = 999_999


def text_of(length, seed=0):
    return bytes(random.Random(seed).choices(range(97, 123), k=length)).decode()


def kinds(events):
    """The types of events by name, in their order: what a failing comparison shows side by side."""
    return " ".join(type(event).__name__ for event in events)


def run_all(llm, model, prompts, **settings):
    clock = FakeClock(tick=1e-4)
    settings = {"clock": clock, "max_seq_len": 512, "async_scheduling": False, **settings}
    return llm.batch_generate(model, TOKENIZER, prompts, **settings)


def limited(prompt, max_tokens, **settings):
    return Prompt(prompt, SamplingParams(max_tokens=max_tokens), **settings)

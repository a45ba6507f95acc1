"""One table of limits: of each number the last values that are allowed, and the first that are refused."""

import asyncio
from argparse import ArgumentError, ArgumentParser, ArgumentTypeError
from dataclasses import dataclass
from functools import reduce
from math import inf, nan, nextafter
from pathlib import Path
from unittest.mock import Mock, patch

import mlx.core as mx
import pytest
from pydantic import ValidationError
from tests.helpers.toy import QWEN3

import tiny_llm_ref
from tiny_llm_lab.runtime.console.field_flags import at_least_one
from tiny_llm_lab.runtime.models.config.fields import Fields
from tiny_llm_lab.runtime.models.random.random_checkpoint import _require_room
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.models.text.tokenizer import ControlText
from tiny_llm_lab.runtime.structured.grammars import _grammar
from tiny_llm_lab.runtime.structured.json_schema import schema_pass as forms
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.serving.options.sampling_options import add_sampling_arguments, sampling_from_args
from tiny_llm_lab.serving.server.api import ApiError
from tiny_llm_lab.serving.server.chat.json_call import JsonCall
from tiny_llm_lab.serving.server.routes import pooling
from tiny_llm_lab.serving.server.routes.completions import CompletionRequest
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest
from tiny_llm_lab.serving.server.settings import ServerSettings, add_chat_flags, add_server_flags
from tiny_llm_lab.types import SamplingParams, SchedulerConfig, StructuredOutputs, UserError
from tiny_llm_lab.types.logits import require_usable
from tiny_llm_lab.types.scheduling.batch import BatchSettings

LLM = TaskNames(tiny_llm_ref)
REFUSED = UserError, ApiError, ValidationError, ArgumentTypeError, ArgumentError


@dataclass(frozen=True)
class Limit:
    """The least and the most of a number; `off` is allowed besides, None that there is no such end."""

    least: float | None
    most: float | None
    off: float | None = None
    is_whole: bool = True
    is_least_open: bool = False  # the least itself is refused
    is_most_open: bool = False

    def allowed(self):
        if self.least is not None:
            yield self._above(self.least) if self.is_least_open else self.least
        if self.most is not None:
            yield self._below(self.most) if self.is_most_open else self.most
        if self.off is not None:
            yield self.off

    def refused(self):
        if self.least is not None:
            yield self.least if self.is_least_open else self._below(self.least)
        if self.most is not None:
            yield self.most if self.is_most_open else self._above(self.most)
        yield from () if self.is_whole else (nan, inf, -inf)

    def _above(self, value):
        return value + 1 if self.is_whole else nextafter(value, inf)

    def _below(self, value):
        return value - 1 if self.is_whole else nextafter(value, -inf)


PENALTY = Limit(-2, 2, is_whole=False)
RATIO = Limit(1e-6, 1e6, is_whole=False)
FROM_0, FROM_1, TOP = Limit(0, None), Limit(1, None), Limit(0, 20)
TOKEN_ID = Limit(0, 2**31 - 1)
SEED = Limit(0, 2**64 - 1)
DRAWS = {
    "temperature": Limit(0, 1e6, is_whole=False),
    "top_p": Limit(0, 1, is_whole=False, is_least_open=True),
    "min_p": Limit(0, 1, is_whole=False, is_most_open=True),
}
SAMPLING = {
    **DRAWS,
    "top_k": FROM_0,
    "seed": SEED,
    "max_tokens": FROM_1,
    "min_tokens": FROM_0,
    "logprobs": TOP,
    "prompt_logprobs": TOP,
    "repetition_penalty": RATIO,
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
}
SCHEDULING = {
    "max_num_batched_tokens": Limit(64, None),  # max_num_seqs
    "max_num_seqs": Limit(1, 2048),
    "max_model_len": FROM_1,
    "long_prefill_token_threshold": Limit(0, 4096),
    "chunk_grid": Limit(0, 2048),
    "max_num_partial_prefills": FROM_0,
}
SECONDS = Limit(0, 10**6, is_whole=False)
SERVER = {
    "port": Limit(0, 65535),
    "max_body_size": Limit(1, 10**9 - 1),
    "max_waiting": Limit(0, 2**31 - 1),
    "drain_s": SECONDS,
    "request_timeout_s": SECONDS,
    "keep_alive_s": SECONDS,
}
COUNT, SOME = Limit(0, 2**31 - 1), Limit(1, 2**31 - 1)
SCHEMA = {
    "n": Limit(1, 128),
    "seed": Limit(-(2**63), 2**64 - 1),
    "presence_penalty": PENALTY,
    "frequency_penalty": PENALTY,
    "top_k": Limit(-1, 2**31 - 1),
    "min_tokens": COUNT,
    "priority": Limit(-(2**31), 2**31 - 1),
}
BODIES = (
    (CompletionRequest, {"prompt": "x"}, {"max_tokens": COUNT, "logprobs": TOP}),
    (
        ChatRequest,
        {"messages": [{"role": "user", "content": "x"}]},
        {"max_tokens": SOME, "max_completion_tokens": SOME, "top_logprobs": TOP},
    ),
    (ResponsesRequest, {"input": "x"}, {"max_output_tokens": SOME}),
)


def body(schema, valid, name):
    return lambda value: schema(**valid, **{name: value})


def flag(name):
    parser = ArgumentParser(exit_on_error=False)
    add_sampling_arguments(parser, 8)
    add_server_flags(parser)
    return lambda value: sampling_from_args(parser.parse_args([f"--{name.replace('_', '-')}={value!r}"]))


def usable(**sampling):
    require_usable(SamplingParams(**sampling), (), QWEN3.vocab_size)


def table():
    """(name, what is built from a value, its limit) for every limit of a number."""
    for name, limit in SAMPLING.items():
        yield f"SamplingParams {name}", lambda value, name=name: SamplingParams(**{name: value}), limit
    for name, limit in (DRAWS | {"top_k": FROM_0, "seed": SEED, "max_tokens": Limit(1, 2**31 - 1)}).items():
        yield f"--{name}", flag(name), limit
    for name, limit in SERVER.items():
        yield f"--{name}", flag(name), limit
    for name, limit in SCHEDULING.items():
        yield f"SchedulerConfig {name}", lambda value, name=name: SchedulerConfig(**{name: value}), limit
    for schema, valid, own in BODIES:
        shared = {name: limit for name, limit in SCHEMA.items() if name in schema.model_fields}
        for name, limit in (shared | own).items():
            yield f"{schema.__name__} {name}", body(schema, valid, name), limit
    vocabulary = Limit(0, QWEN3.vocab_size - 1)
    for limit, biased in ((TOKEN_ID, SamplingParams), (vocabulary, usable)):
        where = biased.__name__
        yield f"{where} logit_bias", lambda value, biased=biased: biased(logit_bias={value: 1.0}), limit
        yield f"{where} stop_token_ids", lambda value, biased=biased: biased(stop_token_ids=(value,)), limit
    bias = Limit(-100, 100, is_whole=False)
    yield "a bias", lambda value: SamplingParams(logit_bias={1: value}), bias
    for name, most in (("batch_size", None), ("prefill_step", None), ("max_seq_len", 1024)):
        yield (
            f"BatchSettings {name}",
            lambda value, name=name: BatchSettings(**{name: value}).require_valid(QWEN3),
            Limit(1, most),
        )
    yield "blocks of a pool", lambda value: LLM.BlockPool(value), FROM_1
    yield "tokens of a block", lambda value: LLM.BlockPool(1, value), FROM_1
    yield "a flag that counts", lambda value: at_least_one(str(value)), Limit(1, 2**31 - 1)
    sizes = {
        "biases": (lambda size: SamplingParams(logit_bias=dict.fromkeys(range(size), 1.0)), 1024),
        "stop tokens": (lambda size: SamplingParams(stop_token_ids=tuple(range(size))), 64),
        "stop strings": (lambda size: SamplingParams(stop=("a",) * size), 64),
        "a long stop string": (lambda size: SamplingParams(stop=("a" * size,)), 1024),
        "min_tokens of 7": (lambda size: SamplingParams(min_tokens=size, max_tokens=7), 7),
    }
    for name, (build, most) in sizes.items():
        yield name, build, Limit(None, most)
    yield "kv_bits", lambda value: LLM.PagedKvCache(QWEN3, 1, 1, mx.float32, value), Limit(8, 8)


def tokens_asked(size):
    """Embeds texts of so many tokens in all."""

    async def count():
        served = Mock(max_num_tokens=size, facts=Mock(model=QWEN3))
        return [each async for each in pooling.encoded(served, [[5], [5] * (size - 1)], "input")]

    return asyncio.run(count())


def written(bits):
    """Weights of so many parameters of `bits`, on a disk with 4,000 bytes left."""

    def build(size):
        with patch("shutil.disk_usage", return_value=Mock(free=4000)):
            _require_room(parse_shape(f"qwen3-shrunk,bits={bits}"), size, Path())

    return build


def must(check):
    """What raises where `check` says no, or finds nothing."""

    def build(value):
        if check(value) in (False, None):
            raise UserError("beyond")

    return build


def of_config(read, name):
    return lambda value: read(Fields(Path("config.json"), {name: value}), name)


def thresholds():
    """(name, what is built from a value, its limit) for limits of requests and of checkpoints."""
    settings = lambda name: lambda value: EngineSettings(**{name: value})  # noqa: E731
    yield "form_timeout_s", settings("form_timeout_s"), Limit(0, inf, None, False, True, True)
    yield "num_speculative_tokens", settings("num_speculative_tokens"), Limit(1, 2047)
    yield "tokens of an input", tokens_asked, Limit(None, pooling.MAX_TOKENS)
    inputs = lambda size: pooling.EmbeddingRequest(input=["a"] * size).require_supported(1)  # noqa: E731
    yield "inputs", inputs, Limit(1, pooling.MAX_INPUTS)
    nested = lambda depth: reduce(lambda inner, _: [inner], range(depth), "x")  # noqa: E731
    yield "nesting of a message", lambda depth: ControlText(()).marked(nested(depth), "|"), Limit(None, 100)
    yield "head of a call", must(lambda size: JsonCall.may_begin("{" + " " * (size - 1))), Limit(None, 400)
    yield "rules", lambda size: _grammar(StructuredOutputs(grammar="a: b\n" * size)), Limit(None, 512)
    yield "a count of a schema", must(forms.is_count), Limit(0, 10**6)
    yield "digits of a multipleOf", must(lambda size: forms.is_step(int("1" * size))), Limit(None, 8)
    yield "a multipleOf", must(lambda value: forms.is_step(value * 100)), Limit(1, 2**32 // 100)
    yield "a number of a form", must(forms.is_exact), Limit(-forms.EXACT, forms.EXACT)
    yield "a bound", must(lambda value: forms.bound(value, is_lower=True)), Limit(None, forms.LARGEST)
    for bits, most in ((4, 8001), (16, 2000), (32, 1000)):  # half a byte is none
        yield f"weights of {bits} bits", written(bits), Limit(None, most)
    for name, most in (("vocab_size", 2**31 - 1), ("num_hidden_layers", 10**4), ("num_experts", 10**4)):
        yield f"{name} of a checkpoint", of_config(Fields.count, name), Limit(1, most)
    for name, least in (("rms_norm_eps", 1e-30), ("factor", 1), ("rope_theta", 2)):
        yield f"{name} of a checkpoint", of_config(Fields.number, name), Limit(least, 1e30, is_whole=False)


TABLE = [*table(), *thresholds()]
IDS = [name for name, _, _ in TABLE]


@pytest.mark.parametrize(("name", "build", "limit"), TABLE, ids=IDS)
def test_the_last_allowed_and_the_first_refused(name, build, limit):
    for value in limit.allowed():
        build(value)
    for value in limit.refused():
        with pytest.raises(REFUSED) as caught:
            build(value)
        assert "\n" not in str(caught.value) or isinstance(caught.value, ValidationError), name


def test_every_number_of_the_settings_is_in_the_table():
    for settings, names in ((SamplingParams, SAMPLING), (SchedulerConfig, SCHEDULING)):
        numbers = {name for name, each in vars(settings()).items() if type(each) in (int, float)}
        assert numbers <= set(names), f"{settings.__name__} has numbers without a limit"


# By field: texts that are taken, and texts that are refused.
FORMS = {
    "max_body_size": ("7 512K 4m 1G 999999999", "0 0K K 4T 1.5M 1000000000 -1"),
    "default_chat_template_kwargs": ('{} {"a":1}', "3 [] x null"),
    "limit_mm_per_prompt": (
        '{"image":999}',
        '{"image":1000} {"image":-1} {"image":true} {"image":1,"a":1} {} 3',
    ),
}


def test_texts_of_flags():
    parser = ArgumentParser(exit_on_error=False)
    add_server_flags(parser)
    add_chat_flags(parser)
    for name, (right, wrong) in FORMS.items():
        flag, given = f"--{name.replace('_', '-')}", right.split()
        found = [getattr(parser.parse_args([flag, text]), name) for text in given]
        assert found == ([7, 2**19, 2**22, 2**30, 10**9 - 1] if name == "max_body_size" else given)
        for text in wrong.split():
            with pytest.raises(ArgumentError):
                parser.parse_args([f"{flag}={text}"])


def test_a_page_changes_the_engine_only_if_it_is_from_here_or_that_is_asked_for():
    for host, is_here in (("127.0.0.1", 1), ("::1", 1), ("localhost", 1), ("0.0.0.0", 0), ("a.example", 0)):
        settings = (ServerSettings(host, enable_live_controls=each) for each in (None, True, False))
        assert [each.has_live_controls for each in settings] == [is_here, True, False], host

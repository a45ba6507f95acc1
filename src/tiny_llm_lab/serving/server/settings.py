"""The flags of the server itself and of its chats; the engine's flags are in options/engine_options.py."""

import json
import os
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, cast

from tiny_llm_lab.runtime.console.field_flags import add_field_flags, at_least, flag, given_fields
from tiny_llm_lab.runtime.console.input_file import json_object
from tiny_llm_lab.runtime.models.recommended import PRESETS
from tiny_llm_lab.types import SamplingParams, UserError

ANY_NAME: Final = "*"
MEDIA_LIMIT: Final = '{"image": 16}'
KEY_VARIABLE: Final = "TINY_LLM_API_KEY"
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30}


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or (unit and unit not in _UNITS) or len(number) > 9 or int(number) < 1:
        raise ArgumentTypeError(f"must be a size such as 512K or 4M, not {text!r}")
    return int(number) * _UNITS.get(unit, 1)


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise ArgumentTypeError(f"must be 0 (any free port) to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a number of seconds, not {text!r}") from None
    if not 0 <= value <= 10**6:
        raise ArgumentTypeError(f"must be 0 to 1,000,000 seconds, not {text}")
    return value


def _sampling(text: str) -> str:
    value = json.loads(_object(text))
    if not value.keys() <= set(PRESETS):
        raise ArgumentTypeError(f"must have no other keys than {', '.join(PRESETS)}, not {text}")
    try:
        SamplingParams(**value)
    except (UserError, TypeError) as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise ArgumentTypeError(f"must be a folder that exists, not {text!r}")
    return text


def _limits(text: str) -> str:
    limits = json_object(text) or {}
    most = limits.get("image")
    if len(limits) != 1 or type(most) is not int or not 0 <= most < 1000:
        raise ArgumentTypeError(f"must be JSON such as '{MEDIA_LIMIT}', a number of 0 to 999, not {text!r}")
    return text


def _object(text: str) -> str:
    if json_object(text) is None:
        form = '{"enable_thinking": false}'
        raise ArgumentTypeError(f"must be a JSON object such as '{form}', not {text!r}")
    return text


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, who may use it, and how it ends; named like the flags."""

    host: str = flag("127.0.0.1", "address to listen on; other machines can reach 0.0.0.0", metavar="ADDRESS")
    port: int = flag(8000, "port to listen on; 0 picks a free one", _port)
    served_model_name: tuple[str, ...] = flag(
        (), "name of the model in requests, or * for any; may be repeated (default: --model)", metavar="NAME"
    )
    api_key: tuple[str, ...] = flag(
        (), f"key that requests must send; may be repeated (default: {KEY_VARIABLE}, or none)", metavar="KEY"
    )
    background_key: tuple[str, ...] = flag(
        (), "a key too; requests with it take what others leave; may be repeated", metavar="KEY"
    )
    allowed_hosts: tuple[str, ...] = flag(
        (), "Host header to accept on loopback without a key; * is any; may be repeated", metavar="NAME"
    )
    allowed_origins: tuple[str, ...] = flag(
        (), "let web pages from this origin send requests; * is any; may be repeated", metavar="ORIGIN"
    )
    ssl_certfile: str = flag("", "PEM file of a certificate: serve https (default: none)", metavar="FILE")
    ssl_keyfile: str = flag("", "PEM file of its key (default: the key in --ssl-certfile)", metavar="FILE")
    max_body_size: int | None = flag(
        None, "most bytes of a request (default: 4M, with pictures 32M)", _size, metavar="SIZE"
    )
    idle_unload: float = flag(
        0.0, "seconds without a request after which a --model NAME=MODEL is unloaded; 0 is never", _seconds
    )
    drain_s: float = flag(30.0, "seconds that running requests get to finish when the server stops", _seconds)
    enable_log_requests: bool = flag(False, "log a line for every request")
    disable_log_stats: bool = flag(False, "do not log the throughput every ten seconds of work")
    enable_live_controls: bool | None = flag(
        None,
        "let the page at / switch chunked prefill and set the token budget (default: on for a loopback "
        "--host)",
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys; requests must send one of them if there are any."""
        return self.api_key + self.background_key

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine reach the server."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def scheme(self) -> str:
        """What URLs of the server begin with."""
        return "https" if self.ssl_certfile else "http"

    def most_bytes(self, has_pictures: bool = True) -> int:
        """Of a request, for a model that reads pictures or text alone."""
        return self.max_body_size or (32 if has_pictures else 4) * 2**20

    @property
    def has_live_controls(self) -> bool:
        """Whether the page at `/` may reconfigure the engine."""
        return self.is_loopback if self.enable_live_controls is None else self.enable_live_controls


@dataclass(frozen=True)
class RequestLimits:
    """Limits for one request, and for all of them together."""

    max_waiting: int = flag(1024, "most requests in the queue; more get status 429", at_least(0))
    background: tuple[str, ...] = flag(
        (),
        "model names whose requests take what others leave, such as 'claude-haiku*'; may be repeated",
        metavar="NAME",
    )
    request_timeout_s: float = flag(0.0, "most seconds for an answer; 0 is no limit", _seconds)
    keep_alive_s: float = flag(
        5.0, "seconds without a token after which a stream gets a comment; 0 is never", _seconds
    )


@dataclass(frozen=True)
class ChatSettings:
    """What messages may have, and which parts of an answer are split off; like in vLLM."""

    reasoning_parser: Literal["qwen3", "off"] = flag(
        "qwen3", "qwen3 moves <think>...</think> from the content to reasoning_content"
    )
    tool_call_parser: Literal["auto", "hermes", "qwen3_coder", "llama3_json", "off"] = flag(
        "auto",
        "auto reads calls as the chat template writes them: <tool_call>...</tool_call> with JSON or with "
        "Qwen3-Coder's tags, and with llama3_json also the JSON alone",
    )
    enable_auto_tool_choice: bool = flag(
        True, "let the model decide whether to call a tool if a request has tools"
    )
    override_generation_config: str = flag(
        "{}", "sampling of requests that don't say it, before the checkpoint's own", _sampling, metavar="JSON"
    )
    reasoning_budget: int = flag(
        -1, "most tokens of thoughts if a request does not say; -1 is any number, 0 off", at_least(-1)
    )
    default_chat_template_kwargs: str = flag(
        "{}", "variables of the template if a request does not set them", _object, metavar="JSON"
    )
    allowed_media_domains: tuple[str, ...] = flag(
        (), "host from which pictures at http(s) addresses are fetched; may be repeated", metavar="HOST"
    )
    allowed_local_media_path: str = flag(
        "", "folder of pictures that file:// addresses may name (default: none)", _folder, metavar="DIR"
    )
    limit_mm_per_prompt: str = flag(MEDIA_LIMIT, "most pictures in a request", _limits, metavar="JSON")

    @property
    def template_variables(self) -> dict[str, Any]:
        """Those of default_chat_template_kwargs."""
        return cast(dict[str, Any], json.loads(self.default_chat_template_kwargs))

    @property
    def most_pictures(self) -> int:
        """That of limit_mm_per_prompt."""
        return int(json.loads(self.limit_mm_per_prompt)["image"])


def add_server_flags(parser: ArgumentParser) -> None:
    """The flags of `ServerSettings` and `RequestLimits`."""
    group = parser.add_argument_group("the server")
    add_field_flags(group, ServerSettings)
    off: Any = {"dest": "enable_log_requests", "action": "store_false", "default": SUPPRESS}
    group.add_argument("--disable-log-requests", **off, help="the default; accepted because vLLM has it")
    add_field_flags(group, RequestLimits)


def server_settings(args: Namespace) -> tuple[ServerSettings, RequestLimits]:
    """What the flags and the environment ask for."""
    key = os.environ.get(KEY_VARIABLE)
    given = {"api_key": (key,) if key else ()} | given_fields(args, ServerSettings)
    return ServerSettings(**given), RequestLimits(**given_fields(args, RequestLimits))


def add_chat_flags(parser: ArgumentParser) -> None:
    """The flags of `ChatSettings`."""
    add_field_flags(parser.add_argument_group("chat"), ChatSettings)


def chat_settings(args: Namespace) -> ChatSettings:
    """What the flags ask for."""
    return ChatSettings(**given_fields(args, ChatSettings))

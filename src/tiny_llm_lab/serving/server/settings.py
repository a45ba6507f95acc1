"""The flags of the server itself and of its chats; those of the engine are in options/engine_options.py."""

import os
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Literal

from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags, given_fields
from tiny_llm_lab.types import UserError

KEY_VARIABLE: Final = "TINY_LLM_API_KEY"
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, who may use it, and how it ends; the names are those of the flags."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()
    api_key: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_size: int = 4 * 2**20
    drain_s: float = 30.0
    enable_log_requests: bool = False
    enable_live_controls: bool | None = None  # None: on a loopback address
    disable_log_stats: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine reach the server."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def has_live_controls(self) -> bool:
        """Whether the page at `/` may reconfigure the engine."""
        return self.is_loopback if self.enable_live_controls is None else self.enable_live_controls


@dataclass(frozen=True)
class RequestLimits:
    """What one request, and all of them together, may take of the server."""

    max_waiting: int = 1024  # requests in the queue, beyond those that run
    request_timeout_s: float = 0.0  # for the whole answer; 0 is none
    keep_alive_s: float = 5.0  # a stream without news gets a comment; 0 is never


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or (unit and unit not in _UNITS) or len(number) > 9 or int(number) < 1:
        raise ArgumentTypeError(f"must be a size such as 512K or 4M, not {text!r}")
    return int(number) * _UNITS.get(unit, 1)


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise ArgumentTypeError(f"must be 0 (any that is free) to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a number of seconds, not {text!r}") from None
    if not 0 <= value <= 10**6:
        raise ArgumentTypeError(f"must be 0 to 1,000,000 seconds, not {text}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ArgumentTypeError(f"must be a whole number of 0 or more, not {text!r}")
    return int(text)


_SERVER_FLAGS: Final = (
    Flag("host", "address to listen on; 0.0.0.0 is every machine that reaches this one", "ADDRESS"),
    Flag("port", "0 takes one that is free", kind=_port),
    Flag("served_model_name", "what requests call the model; may be repeated (default: --model)", "NAME"),
    Flag("api_key", f"requests must bring it; may be repeated (default: {KEY_VARIABLE}, or none)", "KEY"),
    Flag("allowed_hosts", "Host to take on loopback without a key; * is any; may be repeated", "NAME"),
    Flag(
        "allowed_origins", "web pages of this origin may send requests; * is all; may be repeated", "ORIGIN"
    ),
    Flag("max_body_size", "bytes of one request (default: 4M)", "SIZE", kind=_size),
    Flag("drain_s", "when told to stop, seconds in which running requests may finish", kind=_seconds),
    Flag("enable_log_requests", "a line for every request"),
    Flag("disable_log_stats", "no line of throughput every ten seconds while there is work"),
)
_LIMIT_FLAGS: Final = (
    Flag("max_waiting", "requests in the queue; more are answered with 429", kind=_count),
    Flag("request_timeout_s", "seconds for one answer; 0 is any number", kind=_seconds),
    Flag(
        "keep_alive_s", "seconds after which a stream without news gets a comment; 0 is never", kind=_seconds
    ),
)


def add_server_flags(parser: ArgumentParser) -> None:
    """The flags of `ServerSettings` and `RequestLimits`."""
    group = parser.add_argument_group("the server")
    add_field_flags(group, ServerSettings, _SERVER_FLAGS)
    group.add_argument(
        "--disable-log-requests",
        dest="enable_log_requests",
        action="store_false",
        default=SUPPRESS,
        help="as it is by default",
    )
    group.add_argument(
        "--enable-live-controls",
        action=BooleanOptionalAction,
        default=SUPPRESS,
        help="the page at / may switch chunked prefill and set the token budget (default: if on loopback)",
    )
    add_field_flags(group, RequestLimits, _LIMIT_FLAGS)


def server_settings(args: Namespace) -> tuple[ServerSettings, RequestLimits]:
    """What the flags and the environment ask for. Raises UserError for an empty key or name."""
    given = given_fields(args, ServerSettings)
    key = os.environ.get(KEY_VARIABLE)
    given.setdefault("api_key", [key] if key else [])
    for name in ("served_model_name", "api_key", "allowed_hosts", "allowed_origins"):
        given[name] = tuple(given.get(name, ()))
        if not all(given[name]):
            raise UserError(f"--{name.replace('_', '-')} must not be empty: leave it out")
    return ServerSettings(**given), RequestLimits(**given_fields(args, RequestLimits))


@dataclass(frozen=True)
class ChatSettings:
    """Which parts of an answer are split off."""

    reasoning_parser: Literal["qwen3", "off"] = "qwen3"
    tool_call_parser: Literal["hermes", "off"] = "hermes"
    enable_auto_tool_choice: bool = True


_FLAGS: Final = (
    Flag("reasoning_parser", "qwen3 makes <think>...</think> the reasoning_content of an answer"),
    Flag("tool_call_parser", "hermes takes <tool_call>...</tool_call> as a call, also in Qwen3-Coder's form"),
    Flag("enable_auto_tool_choice", "a request with tools leaves it to the model whether to call one"),
)


def add_chat_flags(parser: ArgumentParser) -> None:
    """The flags of `ChatSettings`."""
    add_field_flags(parser.add_argument_group("chat"), ChatSettings, _FLAGS)


def chat_settings(args: Namespace) -> ChatSettings:
    """What the flags ask for."""
    return ChatSettings(**given_fields(args, ChatSettings))

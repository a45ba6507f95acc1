"""The flags of the server itself and of its chats; those of the engine are in options/engine_options.py."""

import os
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Literal

from tiny_llm_lab.runtime.console.field_flags import add_field_flags, at_least, flag, given_fields
from tiny_llm_lab.types import UserError

KEY_VARIABLE: Final = "TINY_LLM_API_KEY"
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30}


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


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, who may use it, and how it ends; the names are those of the flags."""

    host: str = flag(
        "127.0.0.1",
        "address to listen on; 0.0.0.0 is every machine that reaches this one",
        metavar="ADDRESS",
    )
    port: int = flag(8000, "0 takes one that is free", _port)
    served_model_name: tuple[str, ...] = flag(
        (), "what requests call the model; may be repeated (default: --model)", metavar="NAME"
    )
    api_key: tuple[str, ...] = flag(
        (), f"requests must bring it; may be repeated (default: {KEY_VARIABLE}, or none)", metavar="KEY"
    )
    allowed_hosts: tuple[str, ...] = flag(
        (), "Host to take on loopback without a key; * is any; may be repeated", metavar="NAME"
    )
    allowed_origins: tuple[str, ...] = flag(
        (), "web pages of this origin may send requests; * is all; may be repeated", metavar="ORIGIN"
    )
    max_body_size: int = flag(4 * 2**20, "bytes of one request (default: 4M)", _size, metavar="SIZE")
    drain_s: float = flag(30.0, "when told to stop, seconds in which running requests may finish", _seconds)
    enable_log_requests: bool = flag(False, "a line for every request")
    disable_log_stats: bool = flag(False, "no line of throughput every ten seconds while there is work")
    enable_live_controls: bool | None = None  # None: on a loopback address

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

    max_waiting: int = flag(1024, "requests in the queue; more are answered with 429", at_least(0))
    request_timeout_s: float = flag(0.0, "seconds for one answer; 0 is any number", _seconds)
    keep_alive_s: float = flag(
        5.0, "seconds after which a stream without news gets a comment; 0 is never", _seconds
    )


@dataclass(frozen=True)
class ChatSettings:
    """Which parts of an answer are split off, as in vLLM."""

    reasoning_parser: Literal["qwen3", "off"] = flag(
        "qwen3", "qwen3 makes <think>...</think> the reasoning_content of an answer"
    )
    tool_call_parser: Literal["hermes", "off"] = flag(
        "hermes", "hermes takes <tool_call>...</tool_call> as a call, also in Qwen3-Coder's form"
    )
    enable_auto_tool_choice: bool = flag(
        True, "a request with tools leaves it to the model whether to call one"
    )


def add_server_flags(parser: ArgumentParser) -> None:
    """The flags of `ServerSettings` and `RequestLimits`."""
    group = parser.add_argument_group("the server")
    add_field_flags(group, ServerSettings)
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
    add_field_flags(group, RequestLimits)


def server_settings(args: Namespace) -> tuple[ServerSettings, RequestLimits]:
    """What the flags and the environment ask for. Raises UserError for an empty key or name."""
    given = given_fields(args, ServerSettings)
    key = os.environ.get(KEY_VARIABLE)
    given["enable_live_controls"] = getattr(args, "enable_live_controls", None)
    given.setdefault("api_key", [key] if key else [])
    for name in ("served_model_name", "api_key", "allowed_hosts", "allowed_origins"):
        given[name] = tuple(given.get(name, ()))
        if not all(given[name]):
            raise UserError(f"--{name.replace('_', '-')} must not be empty: leave it out")
    return ServerSettings(**given), RequestLimits(**given_fields(args, RequestLimits))


def add_chat_flags(parser: ArgumentParser) -> None:
    """The flags of `ChatSettings`."""
    add_field_flags(parser.add_argument_group("chat"), ChatSettings)


def chat_settings(args: Namespace) -> ChatSettings:
    """What the flags ask for."""
    return ChatSettings(**given_fields(args, ChatSettings))

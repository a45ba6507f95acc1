"""What a server says when it refuses, in one line."""

import json
from typing import Final

_MOST: Final = 300  # characters


class ServerError(Exception):
    """The server answered a request with an error; the message is its own."""


def error_message(error: object) -> str:
    """The message of OpenAI's error object, or what there is instead, in one line."""
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:_MOST] or "an error without a message"


def refusal(status: int, body: bytes) -> str:
    """The status of a refused request, and what its body says."""
    try:
        content = json.loads(body)
        error = content.get("error", content) if isinstance(content, dict) else content
    except (ValueError, RecursionError):
        error = body[:_MOST].decode(errors="replace")
    return f"HTTP {status}: {error_message(error)}"


def failure(error: Exception) -> str:
    """An error of the connection in one line."""
    return " ".join(str(error).split()) or type(error).__name__

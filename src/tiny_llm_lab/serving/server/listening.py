"""The socket that a server listens on."""

import contextlib
import errno
import resource
import socket
from typing import Final

from tiny_llm_lab.types import UserError

_BACKLOG: Final = 2048
_FILES: Final = 65_536


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in it until a server takes them.

    Raises UserError for an address that cannot be used, or that another program uses.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise UserError(f"there is no address {host!r}: choose another --host") from None
    # By name: for the default protocol of streams asyncio leaves Nagle's delay on.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A port whose last connections are still being forgotten can be used again at once.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)  # now: only this finds out about another program that listens
    except OSError as error:
        sock.close()
        raise UserError(_complaint(error, host, port)) from None
    return sock


def allow_connections() -> None:
    """Let this process have as many connections open as the system allows it, _FILES at most.

    The usual limits, 256 and 1024, are below what the queue of a server takes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # not every system allows what it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _complaint(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is in use: stop what uses it, or choose another --port"
        case errno.EACCES:
            return f"port {port} is not allowed to this user: choose a --port above 1023"
    return f"cannot listen on {host} port {port} ({error.strerror}): choose another --host or --port"

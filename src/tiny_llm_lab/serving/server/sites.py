"""Which web sites a server without a key takes requests from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.settings import ServerSettings


@dataclass(frozen=True)
class Sites:
    """Refuses browsers that a page elsewhere has sent, by its own name for this machine or across sites."""

    hosts: frozenset[str]  # without ports
    origins: frozenset[str]

    @classmethod
    def of(cls, settings: ServerSettings) -> Self | None:
        """None where everyone may send requests, or a key says who."""
        if not settings.is_loopback or settings.api_key or "*" in settings.allowed_hosts:
            return None
        names = ("localhost", "127.0.0.1", "[::1]", settings.host, *settings.allowed_hosts)
        return cls(frozenset(map(str.lower, names)), frozenset(settings.allowed_origins))

    def require(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise ApiError 403; what is no browser may leave out either header."""
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if host and _name(host) not in self.hosts:
            raise _forbidden(f"this server is not {host}", f"--allowed-hosts {_name(host)}")
        is_known = _name(origin.partition("://")[2]) in self.hosts or {origin, "*"} & self.origins
        if origin and not is_known and method not in ("GET", "HEAD", "OPTIONS"):
            raise _forbidden(f"pages of {origin} may not send requests", f"--allowed-origins {origin}")


def _name(address: str) -> str:
    return re.sub(r":\d*$", "", address).lower()


def _forbidden(complaint: str, flag: str) -> ApiError:
    return ApiError(403, f"{complaint}: start the server with {flag}, or with --api-key", code="forbidden")

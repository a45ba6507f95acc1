"""The certificate that a server with TLS shows, checked before a model is loaded."""

import os
import ssl

from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import UserError


def require_certificate(settings: ServerSettings) -> None:
    """Raise UserError unless the server can use its certificate with its key, or has none."""
    certificate, key = settings.ssl_certfile, settings.ssl_keyfile
    if not certificate:
        if key:
            raise UserError("--ssl-keyfile needs --ssl-certfile: give the certificate of the key")
        return
    for flag, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        try:
            if path:
                os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            raise UserError(f"{flag} {path} cannot be read ({error.strerror}): give a PEM file") from None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            certificate, key or None, lambda: _password(key or certificate)
        )
    except OSError as error:  # ssl.SSLError is one
        raise UserError(f"{certificate} and its key cannot be used ({_reason(error)}): {_CURE}") from None


_CURE = "give a certificate and its own key as PEM files, --ssl-certfile and --ssl-keyfile"


def _password(path: str) -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise UserError(f"the key in {path} has a password: `openssl rsa -in {path} -out FILE` takes it away")


def _reason(error: OSError) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    return "no certificate or no key is in them" if isinstance(error, ssl.SSLError) else str(error.strerror)

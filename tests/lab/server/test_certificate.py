"""A server with TLS, and files with which it cannot begin."""

import os
import shutil
import signal
import ssl
import subprocess

import httpx2
import pytest
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.until_signal import serve_and

from tiny_llm_lab.serving.server.run_server import require_certificate
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import UserError

CONFIG = """\
[req]
prompt = no
distinguished_name = name
x509_extensions = more
[name]
CN = localhost
[more]
subjectAltName = IP:127.0.0.1
basicConstraints = CA:TRUE
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates a and b with their keys, and the key of a with a password."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificates with the program openssl, which is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "config").write_text(CONFIG)
    run = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -config config -keyout {0}.key -out {0}.pem"
    locked = "openssl rsa -aes128 -passout pass:secret -in a.key -out locked.key"
    for command in (run.format("a"), run.format("b"), locked):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "a.key").read_text() + (folder / "a.pem").read_text())
    return folder


@pytest.mark.parametrize("names", [("a.pem", "a.key"), ("both.pem", "")])
def test_a_server_with_a_certificate_answers_those_who_trust_it(folder, names, caplog):
    certificate, key = (str(folder / name) if name else "" for name in names)

    def client(port):
        try:
            trusting = ssl.create_default_context(cafile=folder / "a.pem")
            with httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting, timeout=60) as http:
                body = {"prompt": "x", "max_tokens": 2, "stream": True}
                assert "[DONE]" in http.post("/v1/completions", json=body).text
                assert http.get("/", headers={"Origin": f"https://127.0.0.1:{port}"}).status_code == 200
            with pytest.raises(httpx2.HTTPError, match="certificate verify failed"):
                httpx2.get(f"https://127.0.0.1:{port}/health", timeout=60)
            with pytest.raises(httpx2.HTTPError):
                httpx2.get(f"http://127.0.0.1:{port}/health", timeout=60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    serve_and(client, FakeEngine(), 0, caplog, ssl_certfile=certificate, ssl_keyfile=key)
    assert "on https://127.0.0.1:" in caplog.text


@pytest.mark.parametrize(
    ("certificate", "key", "says"),
    [
        ("", "a.key", "--ssl-keyfile needs --ssl-certfile"),
        ("no.pem", "a.key", "--ssl-certfile .*no.pem cannot be read .No such file"),
        ("a.pem", "no.key", "--ssl-keyfile .*no.key cannot be read .No such file"),
        ("a.pem", "b.key", "the key belongs to another certificate"),
        ("a.pem", "", "no certificate or no key"),
        ("a.key", "a.key", "no certificate or no key"),
        ("config", "a.key", "no certificate or no key"),
        ("a.pem", "locked.key", "has a password: `openssl rsa"),
        (".", "a.key", "cannot be"),
    ],
)
def test_files_with_which_it_cannot_begin(folder, certificate, key, says):
    paths = {"ssl_certfile": certificate, "ssl_keyfile": key}
    given = {name: str(folder / path) if path else "" for name, path in paths.items()}
    with pytest.raises(UserError, match=says) as caught:
        require_certificate(ServerSettings(**given))
    assert "\n" not in str(caught.value) and ":" in str(caught.value)

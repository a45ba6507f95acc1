"""Where the book's pages can be edited: the repository's address on a forge, if this machine knows it."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_REMOTE: Final = re.compile(
    r"(?:(?P<scheme>https?|ssh)://)?(?:[^@/]+@)?(?P<host>[\w.-]+)(?(scheme)(?P<port>:\d+)?/|:)(?P<path>[\w./~-]+)"
)
# What is between a repository and the branch in the address that edits a file, by a word of the host.
_EDITS: Final = {"github": "edit", "gitlab": "-/edit", "codeberg": "_edit"}
_BRANCH: Final = "main"


def environment(root: Path, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """mdBook's variables for a link to the repository and one to edit each page; none without a known forge.

    In GitHub's CI `variables` name the repository, elsewhere the remote `origin` of the clone `root`.
    """
    is_ci = "GITHUB_SERVER_URL" in variables and "GITHUB_REPOSITORY" in variables
    named = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}".format_map(variables) if is_ci else _origin(root)
    url = web_address(named)
    host = url.partition("://")[2].partition("/")[0]
    edit = next((edit for word, edit in _EDITS.items() if word in host), "edit" if is_ci and url else "")
    if not edit:
        return {}
    return {
        "MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL": url,
        "MDBOOK_OUTPUT__HTML__EDIT_URL_TEMPLATE": f"{url}/{edit}/{_BRANCH}/book/{{path}}",
    }


def web_address(remote: str) -> str:
    """The https address of a remote such as `git@host:owner/name.git`, without user, password and .git.

    An http remote keeps its scheme and port. A folder, or a host without a dot, is "".
    """
    match = _REMOTE.fullmatch(remote)
    if match is None or "." not in match["host"].strip("."):
        return ""
    host = match["host"].removeprefix("ssh.")  # GitHub's ssh on the port of https
    is_web = match["scheme"] in ("http", "https")
    start = f"{match['scheme']}://{host}{match['port'] or ''}" if is_web else f"https://{host}"
    return f"{start}/{match['path'].strip('/').removesuffix('.git')}"


def _origin(root: Path) -> str:
    """What the clone calls `origin`; "" if `root` is no clone, be it in a folder of another one."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:  # a machine without git
        return ""

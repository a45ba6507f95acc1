"""The book's links to the repository: where it is known, and only there."""

import os
import subprocess
from pathlib import Path

import pytest

from tiny_llm_lab.course.book import command
from tiny_llm_lab.course.book.edit_links import environment, web_address

URL = "MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL"
EDIT = "MDBOOK_OUTPUT__HTML__EDIT_URL_TEMPLATE"


def clone(folder: Path, remote: str) -> Path:
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "remote", "add", "origin", remote], check=True)
    return folder


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@github.com:some/repo.git", "https://github.com/some/repo"),
        ("git@github.com:123/repo.git", "https://github.com/123/repo"),
        ("ssh://git@gitlab.com:2222/group/sub/repo.git", "https://gitlab.com/group/sub/repo"),
        ("ssh://git@ssh.github.com:443/some/repo.git", "https://github.com/some/repo"),
        ("https://name:secret@github.com/some/repo.git/", "https://github.com/some/repo"),
        ("http://git.example.org:8080/some/re.po", "http://git.example.org:8080/some/re.po"),
    ],
)
def test_a_remote_on_the_network_has_a_web_address(remote: str, address: str) -> None:
    assert web_address(remote) == address


@pytest.mark.parametrize(
    "remote", ["", "/srv/repo.git", "../repo", "file:///srv/repo.git", "alias:some/repo", "C:/some/repo"]
)
def test_a_folder_or_an_alias_has_none(remote: str) -> None:
    assert web_address(remote) == ""


@pytest.mark.parametrize(
    ("remote", "edit"),
    [
        ("git@github.com:some/repo.git", "https://github.com/some/repo/edit/main/book/{path}"),
        ("git@gitlab.com:some/repo.git", "https://gitlab.com/some/repo/-/edit/main/book/{path}"),
        ("https://codeberg.org/some/repo", "https://codeberg.org/some/repo/_edit/main/book/{path}"),
    ],
)
def test_each_forge_edits_at_an_address_of_its_own(tmp_path: Path, remote: str, edit: str) -> None:
    assert environment(clone(tmp_path, remote), {}) == {URL: web_address(remote), EDIT: edit}


def test_no_forge_no_links(tmp_path: Path) -> None:
    assert environment(tmp_path, {}) == {}
    outer = clone(tmp_path / "outer", "git@github.com:some/other.git")
    (outer / "tiny-llm").mkdir()
    assert environment(outer / "tiny-llm", {}) == {}
    assert environment(clone(tmp_path / "unknown", "https://git.example.org/some/repo"), {}) == {}


def test_ci_names_the_repository_itself(tmp_path: Path) -> None:
    said = {"GITHUB_SERVER_URL": "https://git.example.org", "GITHUB_REPOSITORY": "some/repo"}
    assert environment(clone(tmp_path, "git@gitlab.com:some/other.git"), said) == {
        URL: "https://git.example.org/some/repo",
        EDIT: "https://git.example.org/some/repo/edit/main/book/{path}",
    }


@pytest.fixture
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", URL, EDIT):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_ci")
def test_mdbook_puts_the_links_on_every_page(tmp_path: Path) -> None:
    source = tmp_path / "book" / "src"
    source.mkdir(parents=True)
    (tmp_path / "book" / "book.toml").write_text('[book]\ntitle = "t"\n')
    (source / "SUMMARY.md").write_text("- [One](one.md)\n- [Two](two.md)\n")
    for name in ("one", "two"):
        (source / f"{name}.md").write_text(f"# {name}\n")
    variables = environment(clone(tmp_path, "git@github.com:some/repo.git"), os.environ)
    subprocess.run(
        [command.mdbook(), "build", str(tmp_path / "book")], check=True, env=os.environ | variables
    )
    for name in ("one", "two"):
        page = (tmp_path / "book" / "book" / f"{name}.html").read_text()
        assert 'href="https://github.com/some/repo"' in page
        assert f'href="https://github.com/some/repo/edit/main/book/src/{name}.md"' in page


@pytest.mark.usefixtures("no_ci")
def test_the_command_adds_the_links_unless_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = clone(tmp_path, "git@github.com:some/repo.git")
    assert command.environment(root)[URL] == "https://github.com/some/repo"
    monkeypatch.setenv(URL, "https://example.org/mine")
    assert command.environment(root)[URL] == "https://example.org/mine"

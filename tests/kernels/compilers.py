"""C++ compilers that are not what they should be."""

import shlex
import shutil

_SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then
  [ -n "$LOG" ] && echo version >> "$LOG"
  echo {version}
  : > a.o  # as zig c++ does
  exit
fi
[ -n "$LOG" ] && echo compile >> "$LOG"
{before}
{then}
"""


def fake_compiler(folder, version, *, before="", fails=""):
    """A program `folder`/c++ of its own version: it does `before`, then compiles, or fails with these words.

    With LOG in the environment it writes a line to that file for each call: "version" or "compile".
    """
    folder.mkdir(exist_ok=True)
    real = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++") or "c++"
    then = f"echo {shlex.quote(fails)} >&2; exit 1" if fails else f'exec {real} "$@"'
    path = folder / "c++"
    path.write_text(_SCRIPT.format(version=shlex.quote(f"fake {version}"), before=before, then=then))
    path.chmod(0o755)
    return str(path)

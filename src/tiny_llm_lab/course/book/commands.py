"""docs/commands.md: every command with its flags, from the commands' own parsers."""

import argparse
import importlib
from collections.abc import Iterator

from tiny_llm_lab.runtime.console.commands import COMMANDS, command_parser

_INTRODUCTION = """# Commands

`./pdmw` alone lists the commands, and `./pdmw run COMMAND --help` shows what this page says. The page is
generated: `./pdmw run book` writes it from the commands' own parsers, and `book --check` refuses a stale one.
"""

ENVIRONMENT = """
## Environment

| variable | meaning |
| --- | --- |
| `TINY_LLM_KERNELS=off` | run on plain MLX operators instead of the C++ kernels |
| `TINY_LLM_ISA` | instructions: `avx512bf16`, `avx512vnni`, `avx512`, `avx2`, `neonbf16`, `neon` or `plain` |
| `TINY_LLM_THREADS` | the number of threads of the kernels, as `--threads` |
| `TINY_LLM_CACHE` | the folder of the compiled kernels, instead of `~/.cache/tiny-llm` |
| `TINY_LLM_MLX` | which MLX `./pdmw` installs, such as `cuda13` |
| `CXX` | the C++ compiler of the kernels |

## Threads

On a CPU the C++ kernels of a process share one team of threads.

- **How many?** One for each physical core that the process may use. Hyper-threads of a core count once; the
  affinity mask (`taskset`) and the CPU quotas of all cgroups around the process (containers) bound the
  number, and a quota of 2.5 cores is 2. `--threads` or `TINY_LLM_THREADS` sets another.
- **What do they do between operators?** They wait for about 0.1 ms, offer their core to other programs every
  few microseconds meanwhile, and then sleep: an idle engine takes no processor time.
- **And beside other programs?** A thread that another program keeps from its core is not waited for: the
  others take its work.
- **Are they pinned to cores?** No. On two cores that other programs used too, one engine with pinned threads
  computed 1.08 times as many decode steps of the default model, 0.95 times as many of four layers of
  `qwen3-0.6b`, and 0.92 times as many chunks of 128 tokens: no more than the turns varied. Two engines, which
  choose the same cores, computed 0.94, 0.71 and 0.77 times as much together. macOS has no call for it.
  `taskset -c 0-3 ./pdmw run serve` keeps a process on some cores, and the number of threads follows.
"""


def commands_page() -> str:
    """The text of docs/commands.md."""
    return "\n".join([_INTRODUCTION, *(_section(name) for name in COMMANDS)]) + ENVIRONMENT


def _section(name: str) -> str:
    module, parser = importlib.import_module(COMMANDS[name]), command_parser(name)
    rows = list(_rows(parser))
    table = ["| flag | meaning |\n| --- | --- |", *rows, ""] if rows else []
    examples = [f"- `./pdmw run {name} {line}`: {about}" for line, about in getattr(module, "EXAMPLES", ())]
    return "\n".join([f"## {name}\n", f"{module.HELP}\n", *table, *([*examples, ""] if examples else [])])


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # argparse has no public way to list them
        if argparse.SUPPRESS in (action.help, action.dest) or action.dest == "help":
            continue
        flags = [f"`{flag}`" for flag in action.option_strings]
        names = ", ".join(flags) or f"`{action.metavar or action.dest}`"
        values = "" if action.nargs == 0 or not flags else f" {_values(action)}"
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
        if "--threads" in action.option_strings:  # the one default that is another on every machine
            text = text.replace(f"default: {action.default})", "default: one a core)")
        yield f"| {names}{values} | {text.replace('|', chr(92) + '|')} |"


def _values(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is not None or action.choices is None:
        return action.metavar or action.dest.upper()
    return " or ".join(f"`{choice}`" for choice in action.choices)

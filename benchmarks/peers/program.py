"""Runs in the python of another engine, which has none of our packages: `OtherPython` starts it by its path.

It reads a question in JSON from stdin, {"engine": ..., "do": "make" or "measure", ...}, and writes the answer
of that function of ENGINE_program.py to stdout.
"""

import importlib
import json
import os
import sys
from pathlib import Path


def main() -> None:
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # stdout belongs to the answer, and these libraries log to it
        asked = json.load(sys.stdin)
        sys.path.insert(0, str(Path(__file__).parents[2]))
        module = importlib.import_module(f"benchmarks.peers.{asked.pop('engine')}_program")
        json.dump(getattr(module, asked.pop("do"))(**asked), answer)


if __name__ == "__main__":
    main()

"""`python -m tiny_llm_lab COMMAND`: what every `pdm run` script calls."""

import sys

from tiny_llm_lab.cli import main

sys.exit(main())

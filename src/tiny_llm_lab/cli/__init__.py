"""Room 6 of 6, `cli`: the program `tiny-llm`. It may import every other room, and none imports it.

- `dispatch.py`: finds the command, reads its flags, runs it; the catalogue is `commands.py`
- `main.py`: one answer; `batch_main.py`: many, with `progress.py` and `batch_report.py`
"""

"""The JSON file of a load run."""

import json
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tiny_llm_lab.types import UserError


def result_path(args: Namespace, model: str) -> Path:
    """Where the result goes; UserError, before anything is measured, for a folder that is not there."""
    folder = Path(args.result_dir or ".")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: make it, or choose another --result-dir")
    rate = getattr(args, "request_rate", "inf")
    limit = f"-concurrency{args.max_concurrency}" if args.max_concurrency else ""
    name = Path(model).name.replace(":", "-")
    made_up = f"{args.label or args.backend}-{rate}qps{limit}-{name}-{datetime.now():%Y%m%d-%H%M%S}.json"
    return folder / (args.result_filename or made_up)


def write_result(result: Mapping[str, Any], path: Path) -> None:
    """Write `result` as JSON, with a date."""
    try:
        path.write_text(json.dumps({"date": f"{datetime.now():%Y%m%d-%H%M%S}", **result}) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None

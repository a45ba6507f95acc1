"""Writes results/lab-NAME.json from a folder of `./pdmw run lab all`, one file for each lab.

python -m benchmarks.measurements.labs lab-results/all --machine "AMD EPYC (AVX-512), 2 shared cores"
"""

import argparse
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

_RESULTS: Final = Path(__file__).parents[2] / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measurements.labs", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder that the labs were written to")
    parser.add_argument("--machine", required=True, help="the machine in words")
    args = parser.parse_args()
    for path in sorted(args.folder.glob("*/result.json")):
        lab = json.loads(path.read_text(encoding="utf-8"))
        if not lab["is_valid"]:
            parser.exit(1, f"{lab['lab']} is not valid: {lab['problem']}: run it again\n")
        document = _document(lab, args.machine)
        file = _RESULTS / f"lab-{lab['lab']}.json"
        file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {file}")


def _document(lab: dict[str, Any], machine: str) -> dict[str, Any]:
    host, section = lab["host"], lab["section"]
    quick = " --quick" if lab["settings"]["quick"] else ""
    return {
        "schema": 1,
        "claim": lab["question"],
        "command": f"./pdmw run lab {lab['lab']}{quick}",
        "machine": f"{machine}, {host['system'].split()[0]}, MLX {host['mlx']}",
        "date": date.today().isoformat(),
        "commit": host["commit"],
        "note": " ".join([f"{section['title']}.", *section["notes"], *lab["conclusion"]]),
        "figures": list(_figures(section)),
        "claims": lab["claims"],
    }


def _figures(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A figure for each cell of the table, in the units of its column."""
    for row in section["rows"]:
        for column in section["columns"]:
            found = row["metrics"].get(column["key"], {})
            if "median" in found:
                scaled = {key: found[key] * column["scale"] for key in ("median", "min", "max")}
                spread = {"low": scaled["min"], "high": scaled["max"]} if column["has_spread"] else {}
                yield {"case": row["name"], "what": column["title"], "value": scaled["median"]} | spread


if __name__ == "__main__":
    main()

"""`report`: tests and measurements of this machine, as files to attach to an issue."""

import json
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tiny_llm_lab.measure.bench.flags import shown_model
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.report import Aim, Column, Ratio
from tiny_llm_lab.measure.doctor.command import lines_of
from tiny_llm_lab.measure.doctor.machine import Finding
from tiny_llm_lab.measure.report.plan import PROMPT, Document, Outcome, Part, Plan, default_model, outcomes
from tiny_llm_lab.runtime.console.field_flags import at_least_one, flag_name
from tiny_llm_lab.runtime.console.input_file import json_object
from tiny_llm_lab.runtime.console.tables import markdown_table
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, log, new_folder, writing
from tiny_llm_lab.runtime.memory import readable
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, given_draws
from tiny_llm_lab.types import UserError

_PEER: Final = "mlx-lm"
_PUBLISHED: Final = tomllib.loads((Path(__file__).parent / "published.toml").read_text("utf-8"))["published"]
_DOCTOR: Final = "doctor"
_WIDTH: Final = 100
_RATE: Final = Column("", "tok/s", ",.5g", has_spread=True)
_ENDS: Final = ("min", "median", "max")
_MARKS: Final = {True: "✓", False: "✗", None: ""}
# What decoding should reach, by the number of streams, in multiples of mlx-lm's speed.
AIMS: Final = {1: 1.0, 8: 1.0}


def page_of(host: Document, model: str, outcomes: Sequence[Outcome]) -> str:
    """Aims first, then the machine, then every part with its tables."""
    done = sum(outcome.status == "done" for outcome in outcomes)
    gpu = host["gpu"]
    memory, commit = readable(host["memory_bytes"]), host["commit"] or "unknown"
    mlx = f"{host['mlx']} ({host['mlx_metal_wheel']})" if host["mlx_metal_wheel"] else host["mlx"]
    blocks = [
        f"# tiny-llm on {gpu['name'] if gpu else host['cpu']}",
        f"{host['system']} {host['system_version']}, {memory}, Python {host['python']}, MLX {mlx}, "
        f"commit {commit}{' and changes' if host['uncommitted_changes'] else ''}, model `{model}`. "
        f"{done} of {len(outcomes)} parts are done.",
        "## Compared with mlx-lm",
        *_aims(outcomes),
        "## Next to published numbers",
        "Others measured these on Macs, with other models and prompts; we haven't repeated them. A row says "
        "what a Mac can do, and not which engine is faster.",
        _published({outcome.part.title: outcome for outcome in outcomes}),
        "## The machine",
        *_doctor(outcomes),
        "## Parts",
        markdown_table(["part", "", "s", "its last words"], [_row(outcome) for outcome in outcomes]),
        "## Measurements",
        "Medians, and in brackets the smallest and the largest sample.",
        *(block for outcome in outcomes if not _is_throughput(outcome) for block in _sections(outcome)),
    ]
    return "\n\n".join(blocks) + "\n"


def _aims(outcomes: Sequence[Outcome]) -> Iterator[str]:
    rows = []
    for document in (outcome.document for outcome in outcomes if _is_throughput(outcome)):
        assert document is not None
        results = {row["name"]: row["metrics"] for row in document["sections"][0]["rows"]}
        if _PEER not in results:
            yield f"mlx-lm was not measured: {document['skipped'].get(_PEER, 'it failed')}."
            continue
        for what, key in (("prefill", "prefill_tok_s"), ("decode", "decode_tok_s")):
            aim = AIMS.get(document["batch"]) if what == "decode" else None
            ratio = document["peers"][_PEER]["ratio"][key]
            own = f"{document['solution']} greedy"  # as mlx-lm, if the model's own sampling draws
            names = (own if own in results else document["solution"], _PEER)
            sides = [_RATE.cell([results[name][key][end] for end in _ENDS]) for name in names]
            message = "" if aim is None else f"at least {aim:.1f} {_MARKS[ratio >= aim]}"
            name = f"{what}, {document['batch']} x {document['prompt_len']}"
            rows.append([name, *sides, f"{ratio:.2f}", message])
    if rows:
        yield markdown_table(["streams x prompt", "tiny-llm tok/s", "mlx-lm tok/s", "times", "aim"], rows)
    else:
        yield "Nothing was measured."


def _published(known: Mapping[str, Outcome]) -> str:
    """A row for each number of others, with ours of the same kind."""
    rows = []
    for row in _PUBLISHED:
        figures = [_figure(known.get(title), *where) for title, *where in row["here"]]
        shown = " · ".join(figures) if set(figures) != {"–"} else "–"
        link = f"[{row['source'].split('/')[4]}]({row['source']})"
        rows.append([row["what"], row["on"], row["number"], shown, row["ours"], link])
    return markdown_table(["", "on", "published", "here", "what is measured here", "source"], rows)


def _figure(outcome: Outcome | None, key: str, named: str) -> str:
    """The median of a metric in the first row with `named` in its name; a dash where it was not measured."""
    for section in ((outcome and outcome.document) or {}).get("sections", ()):
        for row in (each for each in section["rows"] if named in each["name"] and key in each["metrics"]):
            [column] = (Column(**each) for each in section["columns"] if each["key"] == key)
            return column.cell([row["metrics"][key].get("median")])
    return "–"


def _doctor(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.part.title == _DOCTOR and outcome.document is not None:
            results = [Finding(**each) for each in outcome.document["findings"]]
            yield "\n".join(
                ["```text", *(line for each in results for line in lines_of(each, _WIDTH)), "```"]
            )


def _row(outcome: Outcome) -> list[str]:
    return [
        outcome.part.title,
        f"{_MARKS[outcome.status == 'done']} {outcome.status}",
        f"{outcome.seconds:.0f}",
        outcome.said,
    ]


def _is_throughput(outcome: Outcome) -> bool:
    is_compared = not any(name in outcome.part.title for name in ("hybrid", "9B"))
    return is_compared and (outcome.document or {}).get("benchmark") == "throughput"


def _sections(outcome: Outcome) -> Iterator[str]:
    """Every table of a benchmark, its ratios with their aims, and its notes."""
    for section in (outcome.document or {}).get("sections", ()):
        yield f"### {section['title']}"
        columns, named = [Column(**each) for each in section["columns"]], section["rows"]
        results = [[row["metrics"].get(each.key, {}).get("samples", ()) for each in columns] for row in named]
        cells = [[*map(Column.cell, columns, samples)] for samples in results]
        rows = [[row["name"], *each] for row, each in zip(named, cells, strict=True)]
        yield markdown_table(["", *(each.title for each in columns)], rows)
        lines = [*map(_ratio, section["ratios"]), *section["notes"]]
        if lines:
            yield "\n".join(f"- {line}" for line in lines)


def _ratio(ratio: Document) -> str:
    aim = Aim(ratio["at_most"], ratio["at_least"])
    return Ratio(**{key: ratio[key] for key in ("name", "value", "low", "high")}, aim=aim).line()


HELP = "Test and measure this machine in about 20 minutes, and write two files for an issue."
EXAMPLES = (("", "measure everything, then attach the two files that it names to an issue"),)


def add_arguments(parser: ArgumentParser) -> None:
    about = "model to measure (default: random:qwen3-0.6b,bits=4 on a GPU, the shipped one on a CPU)"
    parser.add_argument("--model", default=default_model(), help=about)
    about = "minutes after which no new part begins (default: %(default)s)"
    parser.add_argument("--minutes", type=at_least_one, default=20, metavar="N", help=about)
    add_draw_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="rehearse with small sizes and few repeats")
    about = "folder for the results (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("out/report"), help=about)
    about = "go on with the report in --out: what is done there is not done again"
    parser.add_argument("--resume", action="store_true", help=about)


def run(args: Namespace) -> int:
    facts, folder = host_facts(), args.out if args.resume else new_folder(args.out)
    sampling = tuple(f"{flag_name(name)}={value}" for name, value in given_draws(args).items())
    plan, flags = Plan(args.model, folder, args.quick, sampling), ["--quick"] * args.quick
    head = {"schema": 1, "host": facts, "model": shown_model(args.model), "flags": [*flags, *sampling]}
    every = list(plan.parts())
    result = _done(folder / "report.json", every, head) if args.resume else []
    parts = [part for part in every if part not in [each.part for each in result]]
    (folder / PROMPT).write_text("The lamp in the harbour is green, and nobody knows why. " * 100)
    files = _write(folder, head, result)
    for outcome in outcomes(parts, 60.0 * args.minutes):
        result.append(outcome)
        _write(folder, head, result)  # now: the next part may crash
    log(f"wrote {' and '.join(map(str, files))}: attach them to an issue")
    return 0 if all(outcome.status == "done" or outcome.part.lacks for outcome in result) else EXIT_FAILED


def _done(path: Path, parts: Sequence[Part], head: Document) -> list[Outcome]:
    """What is done in the report at `path`; UserError unless it is of this model, commit and flags."""
    found = json_object(path.read_text(encoding="utf-8") if path.is_file() else "")
    if found is None or _measured(found) != _measured(head):
        raise UserError(f"{path} is no report of this model, commit and flags: leave out --resume")
    done = {each.pop("title"): each for each in found["parts"] if each.pop("status") == "done"}
    return [Outcome(part, "done", **done[part.title]) for part in parts if part.title in done]


def _measured(report: Document) -> list[object]:
    # Other changes than before look the same here. Learners always have some, so we don't refuse them.
    host = report.get("host", {})
    return [report.get("model"), report.get("flags"), host.get("commit"), host.get("uncommitted_changes")]


def _write(folder: Path, head: Document, found: list[Outcome]) -> list[Path]:
    files = [folder / "report.json", folder / "report.md"]
    document = {**head, "parts": [each.to_json() for each in found]}
    with writing(f"to {folder}", "choose another --out"):
        files[0].write_text(json.dumps(document) + "\n", encoding="utf-8")
        files[1].write_text(page_of(head["host"], head["model"], found), encoding="utf-8")
    return files

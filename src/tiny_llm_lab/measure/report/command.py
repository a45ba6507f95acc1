"""`report`: tests and measurements of this machine, as files to attach to an issue."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from tiny_llm_lab.measure.bench.flags import shown_model
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.report.page import page_of
from tiny_llm_lab.measure.report.part import Outcome, outcomes
from tiny_llm_lab.measure.report.plan import Plan, default_model
from tiny_llm_lab.runtime.console.field_flags import at_least_one, flag_name
from tiny_llm_lab.runtime.console.new_folder import new_folder
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, log
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, given_draws
from tiny_llm_lab.types import UserError

HELP = "Test and measure this machine in about 15 minutes, and write two files for an issue."
EXAMPLES = (("", "measure everything, then attach the two files that it names to an issue"),)


def add_arguments(parser: ArgumentParser) -> None:
    about = "model to measure (default: random:qwen3-0.6b,bits=4 on a GPU, the shipped one on a CPU)"
    parser.add_argument("--model", default=default_model(), help=about)
    about = "minutes after which no new part begins (default: %(default)s)"
    parser.add_argument("--minutes", type=at_least_one, default=15, metavar="N", help=about)
    add_draw_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="rehearse with small sizes and few repeats")
    about = "folder for the results (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("out/report"), help=about)


def run(args: Namespace) -> int:
    facts, folder = host_facts(), new_folder(args.out)
    sampling = tuple(f"{flag_name(name)}={value}" for name, value in given_draws(args).items())
    plan, found = Plan(args.model, folder, args.quick, sampling), list[Outcome]()
    for outcome in outcomes(list(plan.parts()), 60.0 * args.minutes):
        found.append(outcome)
        files = _write(folder, facts, shown_model(args.model), found)  # now: the next part may crash
    log(f"wrote {' and '.join(map(str, files))}: attach them to an issue")
    return 0 if all(outcome.status == "done" or outcome.part.lacks for outcome in found) else EXIT_FAILED


def _write(folder: Path, facts: dict[str, object], model: str, found: list[Outcome]) -> list[Path]:
    files = [folder / "report.json", folder / "report.md"]
    document = {"schema": 1, "host": facts, "model": model, "parts": [each.to_json() for each in found]}
    try:
        files[0].write_text(json.dumps(document) + "\n", encoding="utf-8")
        files[1].write_text(page_of(facts, model, found), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}: choose another --out") from None
    return files

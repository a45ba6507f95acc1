"""`lab`: experiments on servers that it starts, with a conclusion, a figure and the numbers."""

import base64
import json
import os
import random
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader

from tiny_llm_lab.measure.bench.flags import shown_model
from tiny_llm_lab.measure.bench.host import busy_note, host_facts
from tiny_llm_lab.measure.bench.report import print_section
from tiny_llm_lab.measure.labs.effect import LEAST_ROUNDS
from tiny_llm_lab.measure.labs.experiments import (
    capacity,
    compare,
    hol,
    hurts,
    itl,
    memory,
    mixed,
    null,
    prefix,
    stress,
    sweep,
)
from tiny_llm_lab.measure.labs.lab import QUICK, Lab, LabSetup, OwnLab, Sizes
from tiny_llm_lab.measure.labs.merge import draw, merged
from tiny_llm_lab.measure.labs.result import LabResult, save
from tiny_llm_lab.measure.labs.server import OwnServers, RunningServers, serve_arguments
from tiny_llm_lab.measure.load.client import LoadOptions
from tiny_llm_lab.runtime.console.field_flags import above_zero, at_least_one
from tiny_llm_lab.runtime.console.tables import KEEP, Column, print_lines, print_table, stdout_console
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, Remaining, log, new_folder, plural
from tiny_llm_lab.serving.openai_client import ServedModel, first_model, with_key
from tiny_llm_lab.serving.options.model_options import add_model_arguments, model_name
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, given_draws
from tiny_llm_lab.types import UserError

_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
)


def page_of(title: str, about: str, results: Sequence[tuple[LabResult, Path]]) -> str:
    """The page; each result comes with the PNG of its figure."""
    labs = [(lab, base64.b64encode(figure.read_bytes()).decode()) for lab, figure in results]
    return _TEMPLATES.get_template("page.html").render(title=title, about=about, labs=labs)


HELP: Final = "Run an experiment on servers, and say what it shows."
EXAMPLES: Final = (
    ("hol", "see how one long prompt stalls running answers"),
    ("all --quick", "run every lab with small sizes, and write one page for all"),
    ("itl --server http://127.0.0.1:8080", "measure a server that is already running"),
    ("merge lab-results/hol from-a-mac/hol", "put what machines have measured next to each other"),
)
_EXPERIMENTS: Final = (hol, compare, null, sweep, itl, mixed, stress, hurts, capacity, prefix, memory)
# A lab is named like its file.
LABS: Final[dict[str, Lab | OwnLab]] = {each.__name__.rpartition(".")[2]: each.LAB for each in _EXPERIMENTS}
_ALL: Final = "all"
_CLAIM: Final = Column("claim", KEEP, is_text=True)
_VERDICT: Final = Column("", KEEP, is_left=True)
_CURE: Final = "start a server, or name its model with --model"
_DEFAULT_MODEL: Final = "default"  # of --model; with --server it is the first that the server lists


def add_arguments(parser: ArgumentParser) -> None:
    about = f"{', '.join(LABS)}, all of them, or merge, which measures nothing"
    parser.add_argument("lab", choices=[*LABS, _ALL, "merge"], metavar="LAB", help=about)
    about = "of merge: folders with results of one lab, from several machines or models"
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help=about)
    about = "of merge: the column to compare (default: the lab's first)"
    parser.add_argument("--metric", metavar="TITLE", help=about)
    add_model_arguments(parser)
    add_draw_arguments(parser, "server")
    about = "measure this server, with its own name in --model, and skip variants that need flags"
    parser.add_argument("--server", metavar="URL", help=about)
    about = "small sizes and 3 rounds; a lab takes one to three minutes"
    parser.add_argument("--quick", action="store_true", help=about)
    about = f"number of rounds; a verdict needs {LEAST_ROUNDS} (default: 5, with --quick 3)"
    parser.add_argument("--rounds", type=at_least_one, metavar="N", help=about)
    about = "most tokens of a prompt and its answer (default: %(default)s)"
    parser.add_argument("--max-model-len", type=at_least_one, default=4096, metavar="N", help=about)
    about = "target of ITL p99 in ms, for sweep and capacity (default: a quarter of a long prompt's prefill)"
    parser.add_argument("--itl-slo-ms", type=above_zero, metavar="MS", help=about)
    about = "run one server at a time, for models that fit into memory only once"
    parser.add_argument("--one-at-a-time", action="store_true", help=about)
    about = "seed of the requests (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=about)
    about = "folder for the results; an existing one gets a number (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("lab-results"), help=about)


def run(args: Namespace) -> int:
    if args.lab == "merge":
        print_section(stdout_console(), section := merged(args.folders, args.metric))
        draw(section, figure := new_folder(args.out / "merge") / "figure.png")
        log(f"wrote {figure}")
        return 0
    if args.folders or args.metric:
        raise UserError("folders and --metric are for lab merge: leave them out, or name merge")
    folder, host = new_folder(args.out / args.lab), host_facts()
    names = list(LABS) if args.lab == _ALL else [args.lab]
    results: list[tuple[LabResult, Path]] = []
    failed: list[str] = []
    remaining = Remaining(len(names))
    for name in names:
        log(f"{name}: {LABS[name].question}")
        own = folder / name if args.lab == _ALL else folder
        own.mkdir(exist_ok=True)
        try:
            result = _measured(name, args, own)
        except UserError as error:
            if args.lab != _ALL:
                raise
            log(f"  we skipped {name}: {error}")
            failed.append(name)
            remaining.leave_out(1)
            continue
        _write(result, args, host, own)
        _say(result)
        results.append((result, own / "figure.png"))
        if args.lab == _ALL:
            log(f"{name} is done: {remaining.done()}")
    about = f"{host['cpu']}, {host['cores']} cores, MLX {host['mlx']}, model {shown_model(args.model)}."
    print_lines(stdout_console(), filter(None, [busy_note(host)]))
    if len(results) > 1:
        _say_verdicts(results)
    page = folder / "index.html"
    page.write_text(page_of("Labs: chunked prefill and its kin", about, results), encoding="utf-8")
    log(f"wrote {page}")
    is_valid = all(result.finding.problem is None for result, _ in results)
    return 0 if is_valid and not failed else EXIT_FAILED


def _measured(name: str, args: Namespace, folder: Path) -> LabResult:
    """The result of a lab; ends its servers whatever happens."""
    sizes = QUICK if args.quick else Sizes()
    if args.rounds:
        sizes = replace(sizes, rounds=args.rounds, num_stress=args.rounds)
    settings: dict[str, Any] = {
        "sizes": sizes,
        "folder": folder,
        **{name: getattr(args, name) for name in ("solution", "device", "dtype")},
        "itl_slo_s": None if args.itl_slo_ms is None else args.itl_slo_ms / 1000,
        "seed": args.seed,
        "options": LoadOptions(ignore_eos=True, body=given_draws(args)),
    }
    if args.server:
        is_named, key = args.model != _DEFAULT_MODEL, os.environ.get("OPENAI_API_KEY")
        cures = (_CURE, _CURE)
        served = ServedModel(args.model) if is_named else first_model(args.server, cures, with_key(key))
        most = min(args.max_model_len, served.max_model_len or args.max_model_len)
        settings["options"] = replace(settings["options"], api_key=key)
        # The prompts of another lab, or of another --seed, are in the cache of the same server.
        settings["seed"] = random.Random(f"{args.seed} {name}").getrandbits(32)
        setup = LabSetup(RunningServers(args.server), served.name, max_model_len=most, **settings)
        result = LABS[name](setup)
        message = f"Measured on the server at {args.server}, whose settings we don't know."
        return _with_reason(_concluding(result, message), sizes.rounds)
    model = model_name(args)
    own = serve_arguments(args, model, args.max_model_len)
    with OwnServers(own, folder / "servers", args.one_at_a_time) as servers:
        setup = LabSetup(servers, model, max_model_len=args.max_model_len, **settings)
        return _with_reason(LABS[name](setup), sizes.rounds)


def _with_reason(result: LabResult, rounds: int) -> LabResult:
    """The result, with a sentence if there are too few rounds for a verdict."""
    is_open = any(claim.verdict == "not measurable" for claim in result.finding.claims)
    if rounds >= LEAST_ROUNDS or not is_open:
        return result
    few = f"{plural(rounds, 'round')}: too few for a verdict: take --rounds {LEAST_ROUNDS} or more."
    return _concluding(result, few)


def _concluding(result: LabResult, sentence: str) -> LabResult:
    finding = result.finding
    return replace(result, finding=replace(finding, conclusion=[*finding.conclusion, sentence]))


def _write(result: LabResult, args: Namespace, host: dict[str, Any], folder: Path) -> None:
    command = f"./pdmw run lab {' '.join(args.argv)}"
    settings = {
        "model": shown_model(args.model),
        "quick": args.quick,
        "seed": args.seed,
        "server": args.server,
        "sampling": given_draws(args) or "the server's",
    }
    document = result.to_json(command, settings, host)
    (folder / "result.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    save(result, folder / "figure.png")


def _say(result: LabResult) -> None:
    console = stdout_console()
    print_section(console, result.section)
    problem = result.finding.problem
    said = [f"INVALID: {problem}"] if problem else result.finding.conclusion  # a finding would be believed
    print_lines(console, [*said, *(f"skipped: {each}" for each in result.skipped)])
    if result.finding.claims:
        columns = [_CLAIM, _VERDICT, Column("measured", KEEP, is_text=True)]
        print_table(columns, [[each.text, each.verdict, each.measured] for each in result.finding.claims])
    console.print()


def _say_verdicts(results: Sequence[tuple[LabResult, Path]]) -> None:
    rows = [[each.name, claim.text, claim.verdict] for each, _ in results for claim in each.finding.claims]
    print_table([Column("lab", KEEP, is_left=True), _CLAIM, _VERDICT], rows)

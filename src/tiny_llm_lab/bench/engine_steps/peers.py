"""`peers`: the engine and mlx-lm's BatchGenerator on the same requests, the same checkpoint, in turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Final

from .contest import MEANINGS, Entry, Outcome, make_contest
from .mlx_lm_entry import mlx_lm_entries
from .own_entry import own_entry
from .report import Report
from .setting import Setting
from .turns import Ratio, ratio

# Where more is better; of everything else less is.
_MORE_IS_BETTER: Final = frozenset({"output_tokens_per_s"})
# Closer than this is neither a win nor a loss.
_EVEN: Final = 0.03
_ABOUT: Final = (
    "Long prompts come when an engine's own streams have their first tokens; ITL is that of the streams from "
    "then until the long prompts' first tokens. Peak memory is above what was held before, weights included."
)


def peers(setting: Setting) -> Report:
    """Ours with a budget of one chunk and all streams; mlx-lm with the same chunk, and with its default."""
    entries = [own_entry(setting), *mlx_lm_entries(setting)]
    contests = {each.name: make_contest(setting, _first_tokens_s(setting, each)) for each in entries}
    runs: dict[str, list[Outcome]] = {entry.name: [] for entry in entries}
    for repeat in range(setting.repeats):
        for entry in entries if repeat % 2 == 0 else reversed(entries):
            runs[entry.name].append(entry.run(contests[entry.name]))
    return peers_report(
        runs, contests[entries[0].name].title, [*(entry.about for entry in entries if entry.about), _ABOUT]
    )


def peers_report(runs: Mapping[str, Sequence[Outcome]], title: str, about: Sequence[str]) -> Report:
    """The table of medians, ours against each other one, and where ours loses."""
    own, *others = runs
    ratios = [each for other in others for each in _ratios(runs, own, other)]
    worse = [each.name for each in ratios if is_loss(each)]
    losses = f"{own} loses in: {'; '.join(worse)}." if worse else f"{own} loses nowhere."
    return Report(
        "peers",
        title,
        ("engine", *(title for title, _, _ in MEANINGS.values())),
        [_row(name, values) for name, values in runs.items()],
        ratios,
        [*about, losses],
        {"runs": {name: [asdict(each) for each in values] for name, values in runs.items()}},
    )


def is_loss(compared: Ratio) -> bool:
    """Whether the ratio, ours / theirs, is on the wrong side of 1 by more than a trifle."""
    field = next(field for field, (title, _, _) in MEANINGS.items() if compared.name.startswith(f"{title}, "))
    if field in _MORE_IS_BETTER:
        return compared.value < 1 - _EVEN
    return compared.value > 1 + _EVEN


def _ratios(runs: Mapping[str, Sequence[Outcome]], own: str, other: str) -> list[Ratio]:
    found = []
    for field, (title, _, _) in MEANINGS.items():
        over, under = ([getattr(each, field) for each in runs[name]] for name in (own, other))
        if all(value is not None and value > 0 for value in under) and None not in over:
            found.append(ratio(f"{title}, {own} / {other}", over, under))
    return found


def _row(name: str, values: Sequence[Outcome]) -> tuple[str, ...]:
    cells = []
    for field, (_, factor, digits) in MEANINGS.items():
        numbers = [getattr(each, field) for each in values]
        cells.append("-" if None in numbers else f"{median(numbers) * factor:.{digits}f}")
    return (name, *cells)


def _first_tokens_s(setting: Setting, entry: Entry) -> float:
    """How long this engine takes until every stream has a few tokens; warms it up as well."""
    contest = make_contest(setting, first_tokens_s=None)
    run: Callable[[], Outcome] = partial(entry.run, contest)
    run()
    return run().total_s

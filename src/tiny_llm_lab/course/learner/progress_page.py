"""The page of a learner's progress: one HTML file that needs nothing beside it."""

from html import escape
from string import Template

from tiny_llm_lab.course.manifest import Day, Task
from tiny_llm_lab.course.record.desk import Desk
from tiny_llm_lab.course.record.standing import State, is_optional

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>tiny-llm: $passed of $total tasks</title>
<style>
:root { --page: #fff; --text: #1d2127; --soft: #5a6472; --line: #d9dee5; --card: #f4f6f8;
  --passed: #1a7f37; --changed: #9a6700; --failing: #c4302b; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181c; --text: #e4e8ed; --soft: #9aa5b3; --line: #353c45; --card: #1e2329;
    --passed: #4cc26a; --changed: #d9a441; --failing: #ff7b72; } }
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  max-width: 44rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; margin: .5rem 0; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
progress { width: 100%; height: .8rem; accent-color: var(--passed); }
p, .when { color: var(--soft); }
section { border: 1px solid var(--line); background: var(--card); border-radius: .4rem;
  padding: .6rem .8rem; margin: .5rem 0; }
h3 { font-size: 1rem; margin: 0; display: flex; justify-content: space-between; gap: 1rem; }
ul { list-style: none; margin: .3rem 0 0; padding: 0; }
li { display: grid; grid-template-columns: 1.4rem 3.2rem 1fr auto; gap: .2rem; font-size: .92rem; }
.passed b { color: var(--passed); } .changed b, .written b { color: var(--changed); }
.failing b { color: var(--failing); } .todo, .given { color: var(--soft); }
@media (max-width: 28rem) { .when { grid-column: 3; } }
</style>
<h1>tiny-llm: $passed of $total tasks passed ($share %)</h1>
<progress value="$passed" max="$total" aria-label="$passed of $total tasks passed"></progress>
<p>$span</p>
$weeks
<p>✓ passed, ✗ failing, ◐ written, not graded, – given, ○ to do. Tasks in C++ or Metal are optional.</p>
</html>
""")
_SIGNS = {
    State.PASSED: "✓",
    State.FAILING: "✗",
    State.WRITTEN: "◐",
    State.CHANGED: "◐",
    State.GIVEN: "–",
    State.TODO: "○",
}


def progress_page(desk: Desk) -> str:
    """Days with their tasks, what passed on which date, and the share that has."""
    course, total = desk.course, len(desk.course.tasks)
    dates = sorted(filter(None, (_date(desk, task) for task in course.tasks)))
    weeks = dict.fromkeys(day.id.partition(".")[0] for day in course.days)
    return _PAGE.substitute(
        passed=desk.standing.num_passed,
        total=total,
        share=100 * desk.standing.num_passed // total,
        span=f"From {dates[0]} to {dates[-1]}." if dates else "Nothing has passed yet.",
        weeks="\n".join(_week(desk, week) for week in weeks),
    )


def _week(desk: Desk, week: str) -> str:
    days = "\n".join(_day(desk, day) for day in desk.course.week(int(week)))
    return f"<h2>Week {week}</h2>\n{days}"


def _day(desk: Desk, day: Day) -> str:
    states = [desk.standing.state(task) for task in day.tasks]
    num_passed = sum(state in (State.PASSED, State.CHANGED) for state in states)
    rows = "\n".join(_row(desk, task) for task in day.tasks)
    head = f"<span>{day.id} {escape(day.title)}</span><span>{num_passed}/{len(states)}</span>"
    return f"<section><h3>{head}</h3>\n<ul>\n{rows}\n</ul></section>"


def _row(desk: Desk, task: Task) -> str:
    state = desk.standing.state(task)
    title = escape(task.title) + (" (optional)" if is_optional(task) else "")
    return (
        f'<li class="{state.name.lower()}"><b title="{state.value}">{_SIGNS[state]}</b><span>{task.id}</span>'
        f'<span>{title}</span><span class="when">{_date(desk, task)}</span></li>'
    )


def _date(desk: Desk, task: Task) -> str:
    """When a task first passed; "" where it does not pass now."""
    has_passed = desk.standing.state(task) in (State.PASSED, State.CHANGED)
    outcome = desk.record.outcomes.get(task.id) if has_passed else None
    return outcome.passed_at.partition("T")[0] if outcome else ""

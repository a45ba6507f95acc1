"""The commands of the program `tiny-llm`."""

from typing import Final

from tiny_llm_lab.runtime.console.commands import Catalogue

_COURSE: Final = {
    "status": "tiny_llm_lab.course.learner.status",
    "next": "tiny_llm_lab.course.learner.next_task",
    "test": "tiny_llm_lab.course.grading.run_tests",
    "watch": "tiny_llm_lab.course.learner.watch",
    "explain": "tiny_llm_lab.course.learner.explain_command",
    "hint": "tiny_llm_lab.course.learner.hint",
    "test-ref": "tiny_llm_lab.course.grading.run_tests",
    "diff": "tiny_llm_lab.course.learner.diff",
    "reset": "tiny_llm_lab.course.starter.reset",
    "compare": "tiny_llm_lab.course.compare.command",
    "drill": "tiny_llm_lab.course.drills.command",
    "stubs": "tiny_llm_lab.course.starter.stubs",
}
COMMANDS: Final = Catalogue(
    {
        "main": "tiny_llm_lab.cli.main",
        "serve": "tiny_llm_lab.serving.server.command",
        "chat": "tiny_llm_lab.serving.terminal.command",
        "batch-main": "tiny_llm_lab.cli.batch_main",
        "bench-chunked-prefill": "tiny_llm_lab.measure.bench.chunked.command",
        "lab": "tiny_llm_lab.measure.labs.command",
        "fit": "tiny_llm_lab.measure.fit.command",
        "bench-serve": "tiny_llm_lab.measure.load.command",
        **_COURSE,
        "doctor": "tiny_llm_lab.measure.doctor.command",
        "report": "tiny_llm_lab.measure.report.command",
        "batch": "tiny_llm_lab.serving.offline.command",
        "cluster": "tiny_llm_lab.serving.ray_cluster.command",
        "bench": "tiny_llm_lab.measure.bench.throughput.command",
        "trace": "tiny_llm_lab.measure.trace.command",
        "simulate": "tiny_llm_lab.measure.simulate.command",
        "tune": "tiny_llm_lab.measure.tune.command",
        "arena": "tiny_llm_lab.measure.arena.command",
        "read-log": "tiny_llm_lab.measure.read_log.command",
        "diverge": "tiny_llm_lab.measure.diverge.command",
    },
    first=(
        *("main", "serve", "chat", "fit", "batch-main", "bench-chunked-prefill", "lab", "bench-serve"),
        *("status", "next", "test", "watch", "doctor"),
    ),
    of_clone=frozenset({*_COURSE, "report"}),
    others="For people who change the course or the engine",
)

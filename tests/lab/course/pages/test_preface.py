"""What the preface counts is what course.toml has."""

from pathlib import Path

from tiny_llm_lab.course.manifest import load_course

PREFACE = Path(__file__).resolve().parents[4] / "book" / "src" / "preface.md"


def test_the_preface_counts_the_tasks_in_each_language() -> None:
    tasks = [task for day in load_course().days for task in day.tasks]
    kernels = [task.kernel for task in tasks if task.kernel]
    metal = sum(kernel.endswith(".metal") for kernel in kernels)
    text = PREFACE.read_text("utf-8")
    assert f"the {len(kernels) - metal} tasks in C++, the tests of the {metal} tasks in Metal" in text
    assert f"{len(kernels)} of the {len(tasks)} tasks are in C++ or Metal" in text

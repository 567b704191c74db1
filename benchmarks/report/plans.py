"""Sections of the report about what tasks, views and flows compute."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.limits.judged import Sections
from benchmarks.words import count, ms, row, times, yes


def operators_section(sections: Sections) -> Iterator[str]:
    """Yield the section on operators over their neighbours in Arrow and DuckDB."""
    section = sections.get("operators")
    if section is None:
        return
    yield from ("## Joins and groups of a task, without Spark", "")
    yield (
        f"Groups of {count(section['rows'])} rows; joins of half as many with a tenth. A task takes them in batches of "
        f"{count(section['batch_rows'])}, gives batches, and adds integers up exactly; pyarrow has all rows at once, and "
        "its sums may wrap. One thread each, processor time."
    )
    yield from ("", "| what | task | pyarrow | ratio |", "|---|---|---|---|")
    for name, took in section["cases"].items():
        ratio = took["ours_s"]["median"] / took["pyarrow_s"]["median"]
        yield row([name, times(took["ours_s"]), times(took["pyarrow_s"]), f"{ratio:.1f}"])
    yield ""


def tasks_section(sections: Sections) -> Iterator[str]:
    """Yield the section on reading through a task."""
    section = sections.get("tasks", {})
    counts = [key for key in section if key.isdigit()]
    if not counts:
        return
    yield from ("## Reading through a task, without Spark", "")
    yield (
        "Processor time of one split, by the direct call and through a task with one scan, in turn; the table has four epochs, "
        "of which the first has all keys and each other one in twenty. What is added is some 0.03 ms, whatever the rows; Spark "
        "itself takes some 28 ms for a task, whatever it reads."
    )
    yield ""
    yield "| keys | what is read | direct | through a task | ratio |"
    yield "|---|---|---|---|---|"
    for keys in counts:
        for what, took in sorted(section[keys].items()):
            both = (times(took[name]) for name in ("direct_s", "task_s"))
            yield row([count(int(keys)), what, *both, f"{took['ratio']:.3f}"])
    yield ""


def views_section(sections: Sections) -> Iterator[str]:
    """Yield the section on views over changes."""
    found = sections.get("views")
    if not found or "join" not in found:
        return
    yield from ("## Views over a table of which one row in a hundred changes, on Spark", "")
    yield (
        f"{count(found['orders'])} orders of a tenth as many customers. *join*: each order with its "
        "customer's country. *sum*: number and amount of each customer's orders. In a round a hundredth of "
        "the orders changes and one customer in a thousand; what is told is the work: the micro-batches that "
        "hold the changes, of a query that looks for them every second, or the computation. Everybody runs "
        "alone, in turn, and some rounds before do not count. Our sums are kept in a table, each round a durable "
        "epoch of it; the rows of the join go nowhere unless they are kept, as do those of Spark unless they are "
        "written. Spark's "
        "stateful aggregation reads the same changes of ours and keeps its state in RocksDB. A micro-batch of "
        f"Spark that reads one row from nowhere takes {times(found['floor'])}. Same sums at the end: "
        f"{yes(found['same'])}."
    )
    yield from ("", "| view | by | seconds | processor time |", "|---|---|---|---|")
    for name in ("join", "sum"):
        for keeper, seconds in found[name].items():
            yield row([name, keeper, times(seconds), ms(seconds["cpu_s"]["median"])])
    if "not used again" in found:
        yield ""
        told = (
            f"{name} {times(took)}, processor time {ms(took['cpu_s']['median'])}"
            for name, took in found["not used again"].items()
        )
        yield (
            "With `spark.python.worker.reuse=false` each task has a new process, which imports everything and opens "
            f"every file anew: {'; '.join(told)}. Of the processor time that of processes that have ended is not counted."
        )
    yield ""


def tuning_section(sections: Sections) -> Iterator[str]:
    """Yield the section on settings that are turned one at a time."""
    found = sections.get("tuning", {})
    if "batch_rows" not in found:
        return
    yield from ("## What a setting is worth, on Spark", "")
    yield (
        f"A table of {count(found['rows'])} rows of ten numbers. One setting is turned at a time, in turn; a "
        f"batch has {count(found['batch_rows'])} rows where nothing else is said, and {count(found['rows'])} "
        "where the rows of an Arrow batch are turned. A read hands all rows to a sink that drops them."
    )
    for setting, by_value in found.items():
        if isinstance(by_value, dict):
            yield from ("", f"| {setting} | time | processor time |", "|---|---|---|")
            for value, took in by_value.items():
                name = count(int(value)) if value.isdigit() else value
                yield row([name, times(took["seconds"]), times(took["cpu_s"])])
    yield ""


def fusion_section(sections: Sections) -> Iterator[str]:
    """Yield the section on what runs together."""
    found = sections.get("fusion")
    if not found or "chain" not in found:
        return
    yield from ("## What runs together, on Spark", "")
    yield (
        f"{count(found['rows'])} rows of two numbers through graphs of `spark_upsert.flow`, plans in turn, into a "
        "sink that drops them."
    )
    groups = {
        f"Three operators behind each other, {name}": each for name, each in found["chain"].items()
    }
    groups["One operator that has much to do, by the width of its region"] = found["width"]
    for title, plans in groups.items():
        yield from ("", f"**{title}**", "", "| plan | time | processor time |", "|---|---|---|")
        for name, taken in plans.items():
            yield row([name, times(taken["elapsed_s"]), times(taken["cpu_s"])])
    yield ""

"""Summary of the stress tests."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.stress.trial import Result

LARGEST = ("cpu_s", "peak_mib")
"""Facts that are reported as their maximum over trials; other numbers are summed."""


def figures(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Return the numbers of trials, passed, failed and skipped per kind, their facts, and all failures by name."""
    by_kind = defaultdict[str, list[Result]](list)
    for one in results:
        by_kind[one.trial.kind].append(one)
    return {
        "seconds": round(seconds, 1),
        "kinds": {kind: _of_kind(those) for kind, those in by_kind.items()},
        "failed": {one.trial.name: one.wrong for one in results if one.wrong},
        "skipped": {one.trial.name: one.skipped for one in results if one.skipped},
    }


def _of_kind(results: Sequence[Result]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, value in (item for one in results for item in one.facts.items()):
        if isinstance(value, str):
            facts[name] = value
        else:
            facts[name] = max(facts.get(name, 0), value) if name in LARGEST else facts.get(name, 0) + value
    return {
        "trials": len(results),
        "passed": sum(not one.wrong and not one.skipped for one in results),
        "failed": sum(bool(one.wrong) for one in results),
        "skipped": sum(bool(one.skipped) for one in results),
        "trial_s": round(sum(one.seconds for one in results), 1),
        **{name: round(value, 1) if isinstance(value, float) else value for name, value in sorted(facts.items())},
    }


def print_table(results: Sequence[Result], seconds: float) -> None:
    """Print one line per kind: trials, passed, skipped, total seconds, and facts."""
    told = figures(results, seconds)
    head = ("what", "trials", "passed", "skipped", "seconds")
    print(f"{head[0]:24}" + "".join(f"{word:>9}" for word in head[1:]))
    for kind, one in told["kinds"].items():
        rest = [f"{name} {value}" for name, value in list(one.items())[5:]]
        counts = "".join(f"{one[name]:>9}" for name in ("trials", "passed", "skipped"))
        print(f"{kind:24}{counts}{one['trial_s']:>9.0f}  {', '.join(rest)}"[:200])
    trials, passed = len(results), sum(not one.wrong and not one.skipped for one in results)
    print(f"{'all':24}{trials:>9}{passed:>9}{len(told['skipped']):>9}  {seconds:.0f} s on the wall")

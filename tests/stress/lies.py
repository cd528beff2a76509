"""Well-formed files with wrong content: values that are missing or of another type, range or length."""

import copy
import json
from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (
    *(None, True, "x", "", "\x1b[2J", 5, -1, 0.5, -0.5, 1e308, -1e308, 10**30, 10**400, float("nan"), float("inf")),
    *([], {}, [1], [None], ["x"], [[]], {"x": "y"}, {"x": 5}),
)


def lies_about(name: str, content: str) -> Iterator[tuple[str, str]]:
    """Yield a description of each change to a JSON or JSONL file, and the changed content.

    In a JSONL file, the line with the most fields is changed, for each kind of event.
    """
    if not name.endswith(".jsonl"):
        for what, value in _changed(json.loads(content)):
            yield what, json.dumps(value)
        return
    lines = content.splitlines()
    events = [json.loads(line) for line in lines]
    longest = dict[str, int]()
    for place, event in enumerate(events):
        kind = event.get("event", "")
        if kind not in longest or len(event) > len(events[longest[kind]]):
            longest[kind] = place
    for place in longest.values():
        for what, value in _changed(events[place]):
            yield f"line {place + 1}, {what}", "\n".join([*lines[:place], json.dumps(value), *lines[place + 1 :], ""])
    yield "lines in another order", "\n".join([*reversed(lines), ""])
    yield "a line twice", "\n".join([lines[0], *lines, ""])


def _changed(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values with one of them removed, replaced or changed in length."""
    for key, value in values.items():
        rest = {name: one for name, one in values.items() if name != key}
        yield f"without {path}{key}", rest
        for wrong in WRONG:
            yield f"{path}{key} = {str(wrong)[:20]!r}", rest | {key: copy.deepcopy(wrong)}
        if isinstance(value, dict):
            for what, inner in _changed(value, f"{path}{key}."):
                yield what, rest | {key: inner}
        if isinstance(value, list) and value:
            yield f"{path}{key} one shorter", rest | {key: value[:-1]}
            yield f"{path}{key} one longer", rest | {key: [*value, value[-1]]}
            for wrong in WRONG[:10]:
                yield f"{path}{key} with {str(wrong)[:20]!r}", rest | {key: [wrong, *value[1:]]}

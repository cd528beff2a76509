"""Lists as GitHub reads them: one may follow its paragraph without an empty line between."""

import re
from typing import Any

ITEM = re.compile(r"(- |\d+\. )")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with an empty line before every list."""
    lines: list[str] = []
    fenced = in_list = False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and ITEM.match(line) and not in_list and lines and lines[-1].strip():
            lines.append("")
        in_list = not fenced and (bool(ITEM.match(line)) or (in_list and line.startswith(" ")))
        lines.append(line)
    return "\n".join(lines)

"""Real code beside its equation: `<!-- source: lesson.module.name -->` becomes the lines that define the name."""

import inspect
import pkgutil
import re
import textwrap
from typing import Any

MARK = re.compile(r"<!-- source: (\S+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the code of everything it asks for; a name that is gone ends the build."""
    return MARK.sub(lambda mark: f"```python\n{_source(mark[1])}```", markdown)


def _source(name: str) -> str:
    return textwrap.dedent(inspect.getsource(pkgutil.resolve_name(name)))

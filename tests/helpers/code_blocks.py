"""Code blocks of Markdown pages, and how tests execute them."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DEPLOYMENT = ROOT / "examples" / "flower_deployment"
GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
BLOCK = re.compile(
    r"^(?:<!-- tested by: (?P<test>\S+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the test that executes it if that is a special one."""

    kind: str
    text: str
    test: str | None


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page that are written by hand."""
    text = GENERATED.sub("", page.read_text(encoding="utf-8"))
    return [Block(found["kind"], found["text"], found["test"]) for found in BLOCK.finditer(text)]


def shortened(code: str) -> str:
    """Return Python code with small numbers of seeds and rounds and a short simulated time."""
    code = re.sub(r"time_budget_s=[\d_.]+", "time_budget_s=60", code)
    return re.sub(r"num_seeds=\d+", "num_seeds=1", re.sub(r"\brounds=\d+", "rounds=2", code))


def shortened_study(text: str) -> str:
    """Return the file of a tuned comparison with all times in [rules] divided by ten."""
    rules, groups, rest = text.partition("[groups")
    shorter = re.sub(r"(?<=[ \[])(\d+)0\.0", r"\1.0", rules)
    return shorter + groups + rest


def commands(block: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield each command of a console block, as words, with the output lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0][:-1] + line, [])
        elif found and line.strip():
            found[-1][1].append(line.rstrip())
    for command, output in found:
        parts = re.split(r" (?:&&|&|\|) ?", re.sub(r"\s+(#.*|&)$", "", command))
        for part in parts:
            words = shlex.split(re.sub(r" >>? \S+", "", part), comments=True)
            if words:
                yield words, output if part is parts[-1] else []


def shortened_command(words: list[str]) -> list[str]:
    """Return the arguments of a `lesson` command that trains, with one seed and two rounds."""
    limits = {
        "run": {"--rounds": "2", "--time-budget": "60"},
        "compare": {"--rounds": "2", "--time-budget": "60", "--seeds": "1"},
    }.get(words[0], {})
    kept: list[str] = []
    for word, before in zip(words, ["", *words], strict=False):
        if word not in limits and before not in limits:
            kept.append(word)
    return kept + [text for option, value in limits.items() if option != "--time-budget" for text in (option, value)]


def check_other_command(words: list[str]) -> None:
    """Check that the target of make, the extra or the script that a command names exists; others need a service."""
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in rest if "=" not in word and word not in targets] == [], words
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = [name for word in rest for found in re.findall(r"\[(.+)\]", word) for name in found.split(",")]
        assert [name for name in named if name not in extras] == [], words
    elif program == "python" or program.startswith("./"):  # scripts of the repository have tests of their own
        script = Path(rest[0] if program == "python" else program)
        folders = (ROOT, DEPLOYMENT, Path())  # the last: saved by an earlier block
        assert str(script) in ("-m", "-c") or any((folder / script).exists() for folder in folders), words

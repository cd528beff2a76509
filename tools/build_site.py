"""Builds the documentation as a site that can be served, or read from disk.

    python tools/build_site.py [FOLDER]   # default: site/

Pages link to other files of the repository, as code hosts show them. On the site such files stand below repository/:
Markdown as a page, code and folders of code as a page that shows it, everything else as it is. The pages are copied
with these links to a stage folder, build/docs/, and Zensical builds the site from there; a broken link is an error.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
STAGE = ROOT / "build" / "docs"
LINK = re.compile(r"(\]\()((?!https?:|#|mailto:)[^)\s#]+)(#[^)\s]*)?(?=\))")
ITEM = re.compile(r"(- |\d+\. )")
CODE = {".py": "python", ".toml": "toml", ".service": "ini", ".sh": "bash"}


def stage(folder: Path) -> None:
    """Copy the pages, and every file of the repository that they lead to, to a folder from which the site is built."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    waiting = [f"docs/{path.relative_to(ROOT / 'docs').as_posix()}" for path in (ROOT / "docs").rglob("*.md")]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        path = folder / "docs" / _place(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_page(source):
            shutil.copy(ROOT / source, path)
            continue
        text = _page(source)
        path.write_text(_with_links(text, source), encoding="utf-8")
        linked = {_target(source, link[2]) for link in LINK.finditer(text)} if source.endswith(".md") else set()
        waiting += linked - seen
        seen |= linked


def build(site: Path, staged: Path = STAGE) -> int:
    """Build the site in a folder and return Zensical's exit status.

    Args:
        site: Output folder; replaced if it exists.
        staged: Folder for the staged pages; two builds at the same time need two.
    """
    stage(staged)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    status = subprocess.run(command, cwd=staged, check=False).returncode
    if status == 0:
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(staged / "site", site)
    return status


def _is_page(source: str) -> bool:
    path = ROOT / source
    return path.is_dir() or path.suffix in CODE or path.suffix == ".md"


def _page(source: str) -> str:
    """The Markdown of a page, or a page that shows a file or all files of a folder."""
    path = ROOT / source
    if path.suffix == ".md":
        return _spaced_lists(path.read_text(encoding="utf-8"))
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    parts = [f"# {source}"]
    for file in files:
        if file.suffix in CODE:
            heading = [f"## {file.relative_to(path)}"] if path.is_dir() else []
            parts += [*heading, f"````{CODE[file.suffix]}\n{file.read_text(encoding='utf-8')}````"]
    return "\n\n".join(parts) + "\n"


def _with_links(text: str, source: str) -> str:
    """The page with links as they are on the site."""
    here = posixpath.dirname(_place(source)) or "."

    def rewritten(link: re.Match[str]) -> str:
        return f"{link[1]}{posixpath.relpath(_place(_target(source, link[2])), here)}{link[3] or ''}"

    return LINK.sub(rewritten, text) if source.endswith(".md") else text


def _target(source: str, link: str) -> str:
    """The file of the repository to which a link in one of its files leads."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    readme = posixpath.join(target, "README.md")
    if (ROOT / readme).exists():
        target = readme
    if not (ROOT / target).exists():
        sys.exit(f"{source} links to {link}, which does not exist")
    return target


def _place(target: str) -> str:
    """Where a file of the repository stands on the site, relative to its pages."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    shown = _is_page(target) and not target.endswith(".md")
    return f"repository/{target}.md" if shown else f"repository/{target}"


def _spaced_lists(text: str) -> str:
    """The page with an empty line before every list, which Python-Markdown needs and code hosts do not."""
    lines: list[str] = []
    fenced = in_list = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and ITEM.match(line) and not in_list and lines and lines[-1].strip():
            lines.append("")
        in_list = not fenced and (bool(ITEM.match(line)) or (in_list and line.startswith(" ")))
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"))

"""Links from pages to the repository's files: the files become part of the site.

On GitHub such links are relative to the page. Here a file that a page links to is put under repository/: Markdown as a
page, code and folders of code as a page that shows it, everything else as it is.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
LINK = re.compile(r"(\]\()((?!https?:|#|mailto:)[^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = {".py": "python", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to, and what those pages link to."""
    pages = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    while pages:
        source, text = pages.popitem()
        for link in LINK.finditer(text):
            target = _target(source, link[2])
            if target.startswith("docs/") or files.get_file_from_path(_site_uri(target)) is not None:
                continue
            if (ROOT / target).suffix == ".md":
                pages[target] = (ROOT / target).read_text(encoding="utf-8")
            files.append(_file(target, config))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links as they are on the site."""
    here = page.file.src_uri
    source = here.removeprefix("repository/") if here.startswith("repository/") else f"docs/{here}"

    def rewritten(link: re.Match[str]) -> str:
        uri = _site_uri(_target(source, link[2]))
        return f"{link[1]}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{link[3] or ''}"

    return LINK.sub(rewritten, markdown)


def _target(source: str, link: str) -> str:
    """The file of the repository that a link in one of its files leads to."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    readme = posixpath.join(target, "README.md")
    if (ROOT / readme).exists():
        target = readme
    if not (ROOT / target).exists():
        raise ValueError(f"{source} links to {link}, which does not exist")
    return target


def _site_uri(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    shown = (ROOT / target).is_dir() or posixpath.splitext(target)[1] in CODE
    return f"repository/{target}.md" if shown else f"repository/{target}"


def _file(target: str, config: Any) -> File:
    path, uri = ROOT / target, _site_uri(target)
    if path.is_dir() or path.suffix in CODE:
        return File.generated(config, uri, content=_listing(path))
    return File.generated(config, uri, abs_src_path=str(path))


def _listing(path: Path) -> str:
    """A page that shows a file, or all files of a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    shown = [file for file in files if file.suffix in CODE]
    parts = [f"# {path.relative_to(ROOT)}"]
    for file in shown:
        heading = [f"## {file.relative_to(path)}"] if path.is_dir() else []
        parts += [*heading, f"````{CODE[file.suffix]}\n{file.read_text(encoding='utf-8')}````"]
    return "\n\n".join(parts) + "\n"

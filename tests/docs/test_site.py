"""The documentation builds as a site that works offline."""

import re
from pathlib import Path

import pytest

import lesson
import lesson.flower
import lesson.testing

API = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


@pytest.mark.slow
def test_site_has_no_broken_link_and_works_offline(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text()
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="?(?:https?:)?//', page), path
        assert not re.findall(r'<link[^>]*rel="?(?:stylesheet|preconnect)"?[^>]*href="?(?:https?:)?//', page), path
        for link in re.findall(r'<a [^>]*href="([^"#]+)', page) if path.name != "404.html" else []:
            assert link.startswith(("http", "mailto:")) or (path.parent / link).exists(), f"{path}: {link}"


def test_api_page_describes_exactly_the_public_names() -> None:
    expected = {name for name in lesson.__all__ if name != "__version__"}
    for module in (lesson.testing, lesson.flower):
        expected |= {f"{module.__name__.removeprefix('lesson.')}.{name}" for name in module.__all__}
    described = re.findall(r"^<!-- generated: api (\S+) -->$", API.read_text(), re.MULTILINE)
    assert sorted(described) == sorted(expected)

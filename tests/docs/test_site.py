"""The documentation as a site: it builds without a warning, is whole, and asks nothing of other hosts."""

import re
from pathlib import Path

import pytest

from lesson.settings.reference import describe_section
from lesson.settings.settings import SECTIONS
from lesson.strategies import STRATEGIES

pytestmark = pytest.mark.slow


def pages(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for name, page in pages(site).items():
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="?(?:https?:)?//', page), name
        assert not re.findall(r'<link[^>]*rel="?(?:stylesheet|preconnect)"?[^>]*href="?(?:https?:)?//', page), name
        is_board = name.endswith("board.html")  # a result, not a page of the documentation
        assert is_board or "javascripts/iframe-worker.js" in page, "the search must work from disk"


def test_no_link_is_broken(site: Path) -> None:
    checked = 0
    for name, page in pages(site).items():
        for link in re.findall(r'<a [^>]*href="([^"#]+)', page) if name != "404.html" else []:
            if not link.startswith(("http", "mailto:")):
                assert ((site / name).parent / link).exists(), f"{name}: {link}"
                checked += 1
    assert checked > 500


def test_every_setting_has_a_row(site: Path) -> None:
    page = pages(site)["reference/settings.html"]
    assert [section for section in SECTIONS if f'id="{section}"' not in page] == []
    for section in SECTIONS:
        if not describe_section(section):  # as [task], whose keys are the options of a task
            continue
        table = re.search(rf'id="{section}".*?</table>', page, re.DOTALL)[0]  # type: ignore[index]
        shown = re.findall(r"<tr>\s*<td><code>(\w+)</code></td>", table)
        assert shown == [setting.name for setting in describe_section(section)]
    row = re.search(r"<td><code>noise_dbm</code></td>.*?</tr>", page, re.DOTALL)[0]  # type: ignore[index]
    assert "<code>-100</code><br>printed: <code>-94</code>" in row
    assert "<td>dBm</td>" in row
    row = re.search(r"<td><code>epsilon</code></td>.*?</tr>", page, re.DOTALL)[0]  # type: ignore[index]
    assert "number &gt; 0 and &lt; 1" in row


def test_every_strategy_has_a_section(site: Path) -> None:
    page = pages(site)["reference/strategies.html"]
    assert [name for name in STRATEGIES if f'id="{name}"' not in page] == []


def test_every_equation_has_its_code(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", pages(site)["explanation/model.html"])
    for number in range(3, 13):
        assert f"({number})" in text
    names = "latency_s num_cycles compute_s signal_to_noise rate_bps upload_s assign_tiers due average open_round"
    for name in [*names.split(), "train_client"]:
        assert f"def {name}(" in text
    assert "return bandwidth_hz / float(np.log(2)) * np.log1p(signal_to_noise)" in text


def test_lists_are_lists(site: Path) -> None:
    assert (
        "<li><code>iid</code>: the samples are shuffled and divided evenly.</li>"
        in pages(site)["explanation/learning.html"]
    )

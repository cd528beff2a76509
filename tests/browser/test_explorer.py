"""The deadline explorer in a real browser: what it shows is what `lesson plan` says."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys

from helpers.chromium import Browser
from helpers.fleets import make_fleet
from helpers.flights import write_flight
from lesson import FedCS
from lesson.cli import main
from lesson.fleet.tiers import assign_tiers
from lesson.planning.plan import propose_deadline_s
from lesson.report.plan.text import percent

SLIDER, FIELD = "#deadline-slider", "#deadline-field"
pytestmark = pytest.mark.slow
SLOW = "client,latency_s\na,12\nb,25\nc,41\nd,41.5\ngone,inf\n"
MIXED = "client,latency_s,compute_s,upload_s\nphone,0.3,0.1,0.2\ntablet,0.9,0.5,0.4\npi,2.1,,\nsensor,0.31,0.3,0.01\n"
FLEETS: dict[str, list[str]] = {
    "drawn": ["--clients", "30", "--seed", "3"],
    "slow": ["--latencies", "slow.csv"],
    "slow-filled": ["--latencies", "slow.csv", "--set", "strategy.ensure_first_tier=true"],
    "mixed": ["--latencies", "mixed.csv"],
}
Told = dict[str, Any]
NAN = float("nan")


@pytest.fixture(autouse=True)
def _fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow.csv").write_text(SLOW)
    Path("mixed.csv").write_text(MIXED)


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """What `lesson plan --json` says."""

    def told(*argv: str) -> Told:
        assert main(["plan", "--json", *argv]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return told


@pytest.fixture
def page(quiet_browser: Browser, plan: Callable[..., Told]) -> Callable[..., Browser]:
    """A browser with the page of a fleet open."""

    def opened(fleet: str, *argv: str, **window: Any) -> Browser:
        plan(*FLEETS[fleet], *argv, "--html", "plan.html")
        quiet_browser.open(Path("plan.html"), **window)
        return quiet_browser

    return opened


def look(browser: Browser) -> Told:
    """What the page works out for the deadline that its field shows, or for none."""
    return dict(
        json.loads(
            browser.script(f"""(() => {{
                const {{ clients }} = Page.data.fleet, latency_s = clients.latency_s.map((value) => value ?? Infinity);
                const fleet = {{ ...clients, latency_s }}, ensure = document.querySelector(".controls input").checked;
                const deadline_s = Number(document.querySelector("{FIELD}").value) || Infinity;
                const look = Tiers.lookAtDeadline(fleet, deadline_s, ensure);
                return JSON.stringify({{ look, fedavg: Tiers.lookAtFedavg(fleet), fedcs: Tiers.lookAtFedcs(fleet, look),
                                         rounds: Tiers.schedule(look, 12) }});
            }})()""")
        )
    )


def text(browser: Browser, selector: str) -> str:
    return str(browser.script(f"document.querySelector({selector!r}).textContent"))


def alerts(browser: Browser) -> list[str]:
    """What the page tells as wrong."""
    found = browser.script("[...document.querySelectorAll('[role=alert]')].map((one) => one.textContent)")
    return [line for line in found if line]


def click(browser: Browser, label: str) -> None:
    browser.script(
        f"[...document.querySelectorAll('button')].find((one) => one.textContent.startsWith({label!r})).click()"
    )
    browser.settle()


def rows(browser: Browser, caption: str) -> list[list[str]]:
    """The cells of the table with this caption."""
    return list(
        browser.script(
            "[...document.querySelectorAll('table')].filter((table) => table.caption.textContent.startsWith("
            f"{caption!r})).flatMap((table) => [...table.tBodies[0].rows].map((row) =>"
            " [...row.cells].map((cell) => cell.textContent)))"
        )
    )


def drawn_tiers(browser: Browser) -> dict[str, int]:
    """The tier that each dot says it is in."""
    return dict(
        browser.script(
            "(() => { const [trace] = document.querySelector('[aria-label^=\"Latency of each\"]').data;"
            " return Object.fromEntries(trace.text.map((name, place) => [name, trace.customdata[place][0]])); })()"
        )
    )


def check_same(browser: Browser, told: Told) -> None:
    """The page agrees with a plan: in what it works out, and in what it draws and writes."""
    shown = look(browser)
    here = shown["look"]
    tiers = {str(client["client"]): client["tier"] for client in told["clients"] if client["tier"]}
    assert drawn_tiers(browser) == tiers
    assert [row["tier"] for row in here["tiers"]] == [row["tier"] for row in told["tiers"]]
    assert [cells[:2] for cells in rows(browser, "Tiers")] == [
        [f"{row['tier']:,}", str(len(row["clients"]))] for row in told["tiers"][:12]
    ]
    assert here["round_s"] == pytest.approx(told["round_s"]["lesson"], rel=1e-12)
    assert shown["fedavg"]["round_s"] == told["round_s"]["fedavg"]
    assert (shown["fedcs"] or {"round_s": None})["round_s"] == told["round_s"]["fedcs"]
    assert [record["tiers"] for record in shown["rounds"]] == [record["tiers"] for record in told["rounds"]]
    ends_s = [record["end_s"] for record in told["rounds"]]
    assert [record["end_s"] for record in shown["rounds"]] == pytest.approx(ends_s, rel=1e-12)
    promoted = None if here["promoted"] is None else told["clients"][here["promoted"]]["client"]
    assert promoted == (told["promoted"] or {"client": None})["client"]
    for row in told["deadlines"]:
        if row["deadline_s"] == told["deadline_s"]:
            assert row.pop("promoted") == (promoted is not None)
            assert row.pop("on_time") == 1.0
            for name, value in row.items():
                assert here[name] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), name


def deadline(browser: Browser) -> str:
    return str(browser.script(f"document.querySelector('{FIELD}').value")) or "inf"


@pytest.mark.parametrize(
    ("fleet", "written"),
    [("drawn", ["7.123", "0.01"]), ("slow", ["10"]), ("slow-filled", ["10"]), ("mixed", ["0.3", "1e-9"])],
)
def test_any_deadline_is_planned_as_by_the_command(
    fleet: str, written: list[str], page: Callable[..., Browser], plan: Callable[..., Told]
) -> None:
    """Moved, written and proposed. 0.9 and 2.1 are exactly 3 and 7 times 0.3, which division alone gets wrong."""
    browser = page(fleet)
    check_same(browser, plan(*FLEETS[fleet]))
    browser.script(f"document.querySelector('{SLIDER}').focus()")
    seen = set()
    for key, times in ((Keys.HOME, 1), (Keys.ARROW_RIGHT, 7), (Keys.PAGE_UP, 3), (Keys.ARROW_LEFT, 2), (Keys.END, 1)):
        browser.press(key, times)
        seen.add(deadline(browser))
        check_same(browser, plan(*FLEETS[fleet], "--deadline", deadline(browser)))
    assert len(seen) == 5
    for deadline_s in written:
        browser.type(FIELD, deadline_s)
        check_same(browser, plan(*FLEETS[fleet], "--deadline", deadline_s))
    click(browser, "Proposed")
    told = plan(*FLEETS[fleet], "--deadline", "auto")
    assert float(deadline(browser)) == told["deadline_s"]
    assert text(browser, ".answer").startswith(f"Start with {told['deadline_s']:g} s.")
    check_same(browser, told)


def test_the_proposal_is_that_of_the_command_if_latencies_vary(
    quiet_browser: Browser, page: Callable[..., Browser], plan: Callable[..., Told]
) -> None:
    """The page cannot simulate, so the command passes on its proposal and the share of updates on time."""
    varying = ["--set", "slowdown=0.3"]
    auto = [*varying, "--deadline", "auto"]
    usual = plan(*FLEETS["drawn"], *auto)
    raised = plan(*FLEETS["drawn"], *auto, "--on-time", "0.9", "--html", "plan.html")
    assert usual["deadline_s"] < raised["deadline_s"]
    browser = quiet_browser
    browser.open(Path("plan.html"))
    assert deadline(browser) == f"{raised['deadline_s']:g}"
    on_time = next(row["on_time"] for row in raised["deadlines"] if row["deadline_s"] == raised["deadline_s"])
    assert text(browser, ".answer").startswith(
        f"Start with {raised['deadline_s']:g} s. Of the deadlines tried, it is the shortest at which at least 90 % of "
        f"the updates arrive on time. In a simulation with varying latencies, {int(100 * on_time)} % of the updates "
        "arrived on time at this deadline. LESSON then aggregates"
    )
    fedavg = browser.script(f"ExplorerWords.seconds({raised['round_s']['fedavg']})")
    assert f"FedAvg would wait {fedavg} for the slowest client" in text(browser, ".answer")
    browser.type(FIELD, "3")
    click(browser, f"Proposed: {raised['deadline_s']:g} s")
    assert deadline(browser) == f"{raised['deadline_s']:g}"
    browser.choose_file("input[type=file]", Path("mixed.csv").resolve())
    assert "on time" not in text(browser, ".answer")
    browser = page("drawn", *varying)
    assert text(browser, ".answer").startswith(f"Start with {usual['deadline_s']:g} s. The fastest quarter")
    assert "on time" not in text(browser, ".answer"), "the command has not simulated this deadline"


def test_tiers_at_the_edges_are_the_same_to_the_bit(page: Callable[..., Browser]) -> None:
    """Multiples of many deadlines, a few floating-point steps to either side and around the tolerance."""
    browser = page("slow")
    rng = np.random.default_rng(0)
    for deadline_s in (0.3, 0.1, 7.0, 1 / 3, 1e-9, 1e15, *rng.uniform(0, 50, 14).tolist()):
        whole = np.concatenate([np.arange(1, 60), 10 ** np.arange(2, 17)]) * deadline_s
        steps = np.multiply.outer([1, 1 + 1e-12], 1 + np.arange(-4, 5) * 2**-52).ravel()
        latencies = np.multiply.outer(steps, whole).ravel()
        shown = browser.script(f"Tiers.assignTiers({json.dumps(latencies.tolist())}, {deadline_s!r})")
        assert shown == assign_tiers(latencies, deadline_s).tolist(), deadline_s


def test_proposals_are_the_same(page: Callable[..., Browser]) -> None:
    browser = page("slow")
    rng = np.random.default_rng(1)
    fleets = [[9.05], [100.0], [0.2], *(rng.lognormal(0, 4, rng.integers(1, 12)).tolist() for _ in range(300))]
    shown = browser.script(f"{json.dumps(fleets)}.map(Tiers.proposeDeadline)")
    assert shown == [propose_deadline_s(make_fleet(latencies)) for latencies in fleets]


def test_outliers_are_the_same(page: Callable[..., Browser]) -> None:
    browser = page("slow")
    rng = np.random.default_rng(2)
    fleets = [
        [1.0],
        [1.0, 100.0],
        [1.0, 100.1],
        *(rng.lognormal(0, 4, rng.integers(1, 40)).tolist() for _ in range(300)),
    ]
    shown = browser.script(f"{json.dumps(fleets)}.map(Tiers.reach)")
    assert shown == [make_fleet(latencies).reach_s for latencies in fleets]
    assert sum(reach < max(latencies) for reach, latencies in zip(shown, fleets, strict=True)) > 10


def test_an_outlier_ruins_neither_slider_nor_charts(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    rows = "".join(f"c{place},{latency_s}\n" for place, latency_s in enumerate(range(5, 65, 5)))
    Path("slow.csv").write_text(f"client,latency_s\n{rows}stuck,1000000\n")
    browser = page("slow")
    assert len(drawn_tiers(browser)) == 12
    captions = browser.script("[...document.querySelectorAll('figcaption')].map((one) => one.textContent)")
    assert sum("Not drawn: 1 client slower than 60 s." in caption for caption in captions) == 2
    ends = browser.script("document.querySelector('[aria-label^=Updates]').layout.xaxis.range.map((at) => 10 ** at)")
    assert ends == pytest.approx([1.3, 61.2])  # a quarter of 5 s rounded up, and 2 % more than 60 s
    browser.script(f"document.querySelector('{SLIDER}').focus()")
    for key, shown_s in ((Keys.HOME, "1.3"), (Keys.END, "1000000"), (Keys.ARROW_LEFT, "60")):
        browser.press(key)
        assert deadline(browser) == shown_s
    assert "the dotted one is the proposed 22 s" in text(browser, "[aria-label^=Updates] ~ figcaption")


def test_energies_of_a_file_are_shown(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    Path("slow.csv").write_text("client,latency_s,compute_s,upload_s,compute_j,transmit_j\na,4,3,1,2,1\nb,8,6,2,9,1\n")
    browser = page("slow", "--deadline", "5")
    check_same(browser, plan(*FLEETS["slow"], "--deadline", "5"))
    browser.choose_file("input[type=file]", Path("slow.csv").resolve())
    browser.type(FIELD, "5")
    # in 2 rounds of 5 s, a (3 J) uploads twice and b (10 J) once: 16 J for 3 updates
    assert ["energy per update (J)", "5.33", "6.5", "3"] in rows(browser, "Long-run averages")


def test_shares_are_rounded_as_by_the_command(page: Callable[..., Browser]) -> None:
    shares = [*(np.arange(601) / 600), *(np.arange(201) / 200), *(np.arange(9) / 8), 1e-12]
    shown = page("slow").script(f"{json.dumps([float(share) for share in shares])}.map(ExplorerWords.share)")
    assert shown == [percent(float(share)).replace("%", " %") for share in shares]


def test_a_lone_client_is_taken_to_meet_the_deadline(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    Path("slow.csv").write_text("client,latency_s\na,12\n")
    browser = page("slow-filled", "--deadline", "10")
    check_same(browser, plan(*FLEETS["slow-filled"], "--deadline", "10"))


def test_no_deadline_is_fedavg(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    browser = page("drawn")
    click(browser, "No deadline")
    check_same(browser, plan(*FLEETS["drawn"], "--deadline", "inf"))
    assert [row[1] == row[2] for row in rows(browser, "Long-run averages")] == [True] * 6
    assert "Without a deadline, LESSON is FedAvg." in text(browser, ".now")


def test_tier_1_is_filled_only_if_asked_for(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    browser = page("slow", "--deadline", "10")
    assert "No client meets 10 s: the first updates are aggregated after 2 rounds" in text(browser, ".now")
    browser.script("document.querySelector('.controls input').click()")
    browser.settle()
    assert "the fastest client, a, is promoted to tier 1, although it needs 12 s" in text(browser, ".now")
    check_same(browser, plan(*FLEETS["slow-filled"], "--deadline", "10"))


def test_a_page_can_begin_without_a_deadline(page: Callable[..., Browser]) -> None:
    assert deadline(page("drawn", "--deadline", "inf")) == "inf"


def test_a_deadline_that_is_none_is_told(page: Callable[..., Browser]) -> None:
    browser = page("slow")
    before = rows(browser, "Tiers")
    for written in ("0", "-3", ""):
        browser.type(FIELD, "5")
        browser.type(FIELD, "20")
        browser.script(f"document.querySelector('{FIELD}').select(), document.execCommand('delete')")
        if written:
            browser.type(FIELD, written)
        assert alerts(browser) == [f"the deadline must be a number > 0, got '{written}'"]
        assert rows(browser, "Tiers") == before
    browser.type(FIELD, "1e-300")
    assert alerts(browser) == [
        "the deadline must be longer, got 1e-300 s: every client would need more than 2^53 rounds"
    ]


def test_a_redraw_does_not_overwrite_a_number_that_is_being_typed(page: Callable[..., Browser]) -> None:
    """The 1 of 1e-9 is still waiting to be drawn when "1e", which is no number, is in the field."""
    browser = page("slow")
    shown = drawn_tiers(browser)
    browser.script(f"""(() => {{
        const field = document.querySelector("{FIELD}");
        for (const value of ["1", ""]) {{ field.value = value; field.dispatchEvent(new Event("input")); }}
    }})()""")
    browser.settle()
    assert browser.script(f"document.querySelector('{FIELD}').value") == ""
    assert alerts(browser) == ["the deadline must be a number > 0, got ''"]
    assert drawn_tiers(browser) == shown
    browser.type(FIELD, "1e-3")
    assert deadline(browser) == "1e-3"


def test_a_measured_fleet_takes_the_place_of_the_pages(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    browser = page("drawn")
    path = Path("mixed.csv").resolve()
    told = plan("--latencies", "mixed.csv", "--deadline", "auto")
    for give in (partial(browser.drop_file, ".drop"), partial(browser.choose_file, "input[type=file]")):
        give(path)
        assert text(browser, ".drop p").startswith("4 clients (mixed.csv).")
        assert float(deadline(browser)) == told["deadline_s"]
        assert drawn_tiers(browser) == {client["client"]: client["tier"] for client in told["clients"]}
        assert browser.script("document.querySelector('[aria-label^=Map]').offsetParent") is None
        schedule = browser.script("document.querySelector('[aria-label^=Schedule]').data.map((trace) => trace.name)")
        assert schedule == ["trains", "uploads", "trains and uploads", "waits", "aggregated"]
        click(browser, "Back to the original fleet")
        assert len(drawn_tiers(browser)) == 30
        assert browser.script("document.querySelector('[aria-label^=Map]').offsetParent") is not None


BAD = [
    ("", "line 1: the header must be client,latency_s, optionally with compute_s,upload_s,num_samples,compute_j,"),
    ("client,latency_s,speed\na,1,2\n", "got 'client,latency_s,speed'"),
    ("client,latency_s,latency_s\na,1,1\n", "line 1: the header must be"),
    ("client;latency_s\na;1\n", "got 'client;latency_s'; separate columns with commas"),
    ("client\tlatency_s\na\t1\n", "got 'client latency_s'; separate columns with commas"),
    ("client,latency_s\n", "has no clients; add one line per client below the header"),
    ("client,latency_s\na,1\nb,-2\n", "line 3: latency_s must be a number > 0, got '-2'"),
    ("client,latency_s\na,0\n", "line 2: latency_s must be a number > 0, got '0'"),
    ("client,latency_s\na,0x1f\n", "line 2: latency_s must be a number > 0, got '0x1f'"),
    (
        "client,latency_s\na,\n",
        "line 2: latency_s must be a number > 0, got ''; write inf for a client that cannot be reached",
    ),
    ("client,latency_s\na,-inf\n", "line 2: latency_s must be a number > 0, got '-inf'"),
    (
        "client,latency_s\na,nan\n",
        "line 2: latency_s must be a number > 0, got 'nan'; write inf for a client that cannot be reached",
    ),
    ("client,latency_s\na,1_0\n", "line 2: latency_s must be a number > 0, got '1_0'"),
    ('client,latency_s\n"a\nb",1\n\n"a\nb",2\n', "line 6: client 'a b' is listed twice, first on line 3; rename one"),
    (
        "client,latency_s\na,fast\n",
        "line 2: latency_s must be a number > 0, got 'fast'; write inf for a client that cannot be reached",
    ),
    ("client,latency_s\na,1,2\n", "line 2: a row must have 2 values, as many as the header, got 3"),
    ("client,latency_s\n,1\n", "line 2: client must have a name, got an empty one"),
    (
        "client,latency_s,num_samples\na,1,2.5\n",
        "line 2: num_samples must be a whole number from 1 to 1",
    ),
    ("client,latency_s,num_samples\na,1,9999999999999\n", "line 2: num_samples must be a whole number from 1 to 1"),
    (
        "client,latency_s,compute_s,upload_s\na,10,5,6\n",
        "line 2: compute_s + upload_s must equal latency_s to within 1 %, got 11 and 10",
    ),
    ("client,latency_s,compute_s,upload_s\na,10,5,inf\n", "must equal latency_s to within 1 %, got inf and 10"),
    ("client,latency_s,compute_s\na,3,300\n", "line 2: compute_s and upload_s must not exceed latency_s = 3"),
    ("client,latency_s,compute_s\na,3,-1\n", "line 2: compute_s must be a number >= 0, got '-1'"),
    ("client,latency_s,compute_s,compute_j\na,3,3,-1\n", "line 2: compute_j must be a number >= 0, got '-1'"),
    ("client,latency_s,compute_s,compute_j\na,3,3,inf\n", "line 2: compute_j must be finite, got inf"),
    ("client,latency_s,transmit_j\na,3,1\n", "line 2: transmit_j requires upload_s, got an empty cell; add the time"),
    ("client,latency_s\na,inf\n", "no client can be reached: all 1 latencies are infinite"),
    (b"client,latency_s\n\xff\xfe,1\n", "cannot be read: not a CSV file in UTF-8"),
]


def test_bad_files_are_told_in_the_words_of_the_command(
    page: Callable[..., Browser], capsys: pytest.CaptureFixture[str]
) -> None:
    browser = page("slow")
    for written, message in BAD:
        path = Path("bad.csv")
        path.write_bytes(written if isinstance(written, bytes) else written.encode())
        browser.choose_file("input[type=file]", path.resolve())
        (line,) = alerts(browser)
        assert message in line
        assert main(["plan", "--latencies", "bad.csv"]) == 2
        assert capsys.readouterr().err == f"lesson: {line}\n"
    assert text(browser, ".drop p").startswith("5 clients (slow.csv).")
    Path("bad.csv").write_text('client,latency_s\n"a,1\n')
    browser.choose_file("input[type=file]", Path("bad.csv").resolve())
    assert alerts(browser) == ["bad.csv cannot be read: on line 2, a value in quotes must end with a quote and a comma"]


def test_files_of_spreadsheets_are_read(page: Callable[..., Browser]) -> None:
    Path("sheet.csv").write_bytes('\ufeffclient, latency_s\r\n"Ana, ""phone""", 5\r\n\r\nBé,inf\r\nC,+1.5e1'.encode())
    browser = page("slow")
    browser.choose_file("input[type=file]", Path("sheet.csv").resolve())
    assert (alerts(browser), drawn_tiers(browser)) == ([], {'Ana, "phone"': 1, "C": 3})
    assert "1 of 3 clients are unreachable" in text(browser, ".now")


def test_the_example_that_can_be_downloaded_is_read(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    browser = page("slow")
    assert browser.script("document.querySelector('a[download]').href").startswith("data:text/csv")
    Path("example.csv").write_text(browser.script("FleetCsv.EXAMPLE"))
    browser.choose_file("input[type=file]", Path("example.csv").resolve())
    assert alerts(browser) == []
    assert len(plan("--latencies", "example.csv")["clients"]) == 5


FLIGHTS: dict[str, dict[str, Any]] = {
    "cold": {"latency_s": [[9.0, 10, 30], [4, 12, 28], [4, 11, -60], [5, 14, 32], [4, 11, 31], [6, NAN, 30]]},
    "silent": {"latency_s": [[5.0, -20, 7.5], [5.5, -20, 8], [6, -30, 9]]},
    "without parts": {"latency_s": [[5.0, 9], [7, 11]], "compute_share": None},
}


@pytest.mark.parametrize("name", FLIGHTS)
def test_a_recording_takes_the_place_of_the_pages_fleet(
    name: str, page: Callable[..., Browser], plan: Callable[..., Told]
) -> None:
    browser = page("drawn")
    path = write_flight(Path("flight.jsonl"), **FLIGHTS[name])
    told = plan("--flight", "flight.jsonl", "--deadline", "auto")
    browser.drop_file(".drop", path.resolve())
    assert alerts(browser) == []
    assert text(browser, ".drop p").startswith(f"{len(told['clients'])} clients (flight.jsonl, median latencies).")
    assert float(deadline(browser)) == told["deadline_s"]
    assert drawn_tiers(browser) == {one["client"]: one["tier"] for one in told["clients"] if one["tier"]}
    bytes_of = f"new TextEncoder().encode({json.dumps(path.read_text())})"
    shown = json.loads(browser.script(f"JSON.stringify(FlightJsonl.read({bytes_of}, 'flight.jsonl'))"))
    for part in ("compute_s", "upload_s", "latency_s"):
        for ours, theirs in zip(shown[part], (one[part] for one in told["clients"]), strict=True):
            assert ours == (None if theirs is None else pytest.approx(theirs, rel=1e-12)), part


ASKED = '{"event": "asked", "t_s": 1, "client": "a", "job": "1"}\n'
ARRIVED = '{"event": "arrived", "t_s": 3, "job": "1"}\n'
BAD_FLIGHTS = [
    '{"flight": 2}\n',
    '{"event": "asked"}\n',
    '{"flight": 1}\n{"event": "asked", \n',
    f'{{"flight": 1}}\n{ASKED}',
    f'{{"flight": 1}}\n{ASKED}{ASKED}',
    f'{{"flight": 1}}\n{ARRIVED}',
    f'{{"flight": 1}}\n{ASKED}{ARRIVED}{ARRIVED}',
    f'{{"flight": 1}}\n{ASKED}{ARRIVED}{ASKED.replace("1", "2")}',
    f'{{"flight": 1}}\n{ASKED}{ARRIVED}'[:-1],
    '{"flight": 1}\n{"event": "asked", "t_s": 1, "job": "1"}\n',
    '{"flight": 1}\n{"event": "asked", "t_s": 1, "client": "a"}\n',
    f'{{"flight": 1}}\n{ASKED}{ARRIVED[:-2]}, "client": "b"}}\n',
    f'{{"flight": 1}}\n{ASKED.replace("asked", "connected")}',
]


def test_bad_recordings_are_told_in_the_words_of_the_command(
    page: Callable[..., Browser], capsys: pytest.CaptureFixture[str]
) -> None:
    browser = page("slow")
    for written in BAD_FLIGHTS:
        Path("bad.jsonl").write_text(written)
        browser.choose_file("input[type=file]", Path("bad.jsonl").resolve())
        (line,) = alerts(browser)
        assert main(["plan", "--flight", "bad.jsonl"]) == 2
        assert capsys.readouterr().err == f"lesson: {line}\n"
    for event in ('{"event": "asked", "t_s": -1}', '{"event": "flew", "t_s": 1}', "[1]", "3"):
        Path("bad.jsonl").write_text(f'{{"flight": 1}}\n{event}\n')
        browser.choose_file("input[type=file]", Path("bad.jsonl").resolve())
        (line,) = alerts(browser)
        assert line.startswith("bad.jsonl line 2: ")
    assert text(browser, ".drop p").startswith("5 clients (slow.csv).")


def snippets(browser: Browser) -> list[str]:
    """The code and the command that the page exports."""
    return list(
        browser.script("[...document.querySelectorAll('#explorer .quoted code')].map((one) => one.textContent)")
    )


def test_the_page_exports_code_and_a_command(page: Callable[..., Browser]) -> None:
    """Of 12, 25, 41 and 41.5 s, one meets 23 s, and the others need two rounds."""
    browser = page("slow", "--set", "seed=3", "--deadline", "23")
    code, command = snippets(browser)
    assert code == (
        "from lesson.flower import LessonStrategy\n\n"
        "# 1 of 5 clients upload in every round, the slowest every 2 rounds.\n"
        "strategy = LessonStrategy(deadline_s=23.0)\n"
    )
    assert command == "lesson run --latencies slow.csv --set seed=3 --strategy lesson --deadline 23"
    browser.type(FIELD, "12.5")
    click(browser, "FedCS")
    code, command = snippets(browser)
    made: Told = {}
    exec(code, made)
    assert (made["strategy"].deadline_s, made["strategy"].strategy) == (12.5, FedCS(12.5))
    assert command.endswith("--strategy fedcs --deadline 12.5")
    browser.type(FIELD, "3")
    assert "FedCS cannot run: no client meets 3 s." in text(browser, "#explorer")
    assert snippets(browser) == []
    click(browser, "FedAvg")
    code, command = snippets(browser)
    exec(code, made)
    assert type(made["strategy"]).__name__ == "FedAvg"
    click(browser, "LESSON")
    click(browser, "No deadline")
    code, command = snippets(browser)
    assert "strategy = FedAvg()" in code
    assert command.endswith("--strategy lesson --deadline inf")


def test_the_command_names_the_clients_of_the_page(page: Callable[..., Browser]) -> None:
    assert snippets(page("drawn"))[1] == "lesson run --set num_clients=30 --seed 3 --strategy lesson --deadline 20"
    browser = page("drawn", "--set", "radio.power_w=0.2", "--scenario", "printed")
    assert snippets(browser)[1].startswith(
        "lesson run --scenario printed --set num_clients=30 --seed 3 --set radio.power_w=0.2 --strategy lesson"
    )
    Path("mixed.csv").rename("my fleet.csv")
    browser.choose_file("input[type=file]", Path("my fleet.csv").resolve())
    assert snippets(browser)[1] == "lesson run --latencies 'my fleet.csv' --strategy lesson --deadline 0.33"


def test_the_copy_button_copies_the_code(page: Callable[..., Browser]) -> None:
    browser = page("slow")
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.click('#explorer button[aria-label="Copy the code for a Flower app"]')
    assert browser.script("navigator.clipboard.readText()") == snippets(browser)[0]


def test_a_recordings_latencies_can_be_saved_for_a_run(page: Callable[..., Browser], plan: Callable[..., Told]) -> None:
    browser = page("slow")
    recording = write_flight(Path("flight.jsonl"), [[5.0, -20, 7.5], [5.5, -20, 8], [6, -30, 9]])
    browser.choose_file("input[type=file]", recording.resolve())
    assert snippets(browser)[1:] == [
        "lesson replay flight.jsonl --strategies lesson,fedcs,fedavg --deadline 6.1",
        "lesson run --latencies fleet.csv --strategy lesson --deadline 6.1",
    ]
    link = browser.script("document.querySelector('#explorer h3#deploy ~ div a[download]').href")
    Path("fleet.csv").write_text(unquote(link.partition(",")[2]))
    keys = ("client", "latency_s", "compute_s", "upload_s", "tier")
    saved, recorded = plan("--latencies", "fleet.csv"), plan("--flight", "flight.jsonl")
    for ours, theirs in zip(saved["clients"], recorded["clients"], strict=True):
        assert [ours[key] for key in keys] == [theirs[key] for key in keys]
    plan("--flight", "flight.jsonl", "--deadline", "9", "--html", "plan.html")
    browser.open(Path("plan.html"))
    assert snippets(browser)[1:] == [
        "lesson replay flight.jsonl --strategies lesson,fedcs,fedavg --deadline 9",
        "lesson run --latencies fleet.csv --strategy lesson --deadline 9",
    ]


def test_charts_are_drawn(page: Callable[..., Browser]) -> None:
    browser = page("drawn", "--deadline", "20")

    def count(chart: str, marks: str) -> int:
        return int(browser.script(f"document.querySelectorAll('[aria-label^={chart}] {marks}').length"))

    assert count("Map", ".scatterlayer .point") == 31  # the base station too
    assert count("Latency", ".scatterlayer .point") == 30
    assert count("Updates", ".scatterlayer .js-line") == 4
    merges = sum(12 // tier["tier"] for tier in look(browser)["look"]["tiers"])
    assert count("Schedule", ".scatterlayer .point") == merges
    assert count("Schedule", ".barlayer .point") >= merges
    click(browser, "24 rounds")
    assert count("Schedule", ".scatterlayer .point") > merges


def test_nothing_offers_to_send_a_chart_away(page: Callable[..., Browser]) -> None:
    tools = page("drawn").script("[...document.querySelectorAll('.modebar-btn')].map((tool) => tool.dataset.title)")
    assert "Zoom in" in tools
    assert not [tool for tool in tools if "hare" in tool or "loud" in tool]


def test_the_keyboard_reaches_everything(page: Callable[..., Browser]) -> None:
    browser = page("drawn")
    reached = []
    for _ in range(12):
        browser.press(Keys.TAB)
        reached.append(browser.script("document.activeElement.id || document.activeElement.type"))
    assert [name for name in reached if name in ("file", "deadline-field", "deadline-slider", "checkbox")] == [
        "file", "deadline-field", "deadline-slider", "checkbox",
    ]  # fmt: skip
    browser.script(f"document.querySelector('{SLIDER}').focus()")
    browser.press(Keys.HOME)
    told = browser.script(f"document.querySelector('{SLIDER}').getAttribute('aria-valuetext')")
    assert told.startswith(f"{float(deadline(browser)):g}")
    assert told.endswith("tiers")


def test_a_narrow_phone_need_not_scroll_sideways(page: Callable[..., Browser]) -> None:
    browser = page("drawn", width=360, height=740)
    assert browser.script("document.documentElement.scrollWidth") == 360
    browser.drop_file(".drop", Path("slow.csv").resolve())
    browser.type(FIELD, "0.001")
    assert browser.script("document.documentElement.scrollWidth") == 360


def test_a_large_fleet_says_that_it_is_a_part(page: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.report.page.plan_page.MAX_CLIENTS", 20)
    browser = page("drawn")
    assert "30 clients (released, seed 3). All numbers below are for a sample of 20 of them, evenly spaced" in text(
        browser, ".drop p"
    )
    assert len(drawn_tiers(browser)) == 20


@pytest.mark.parametrize(
    ("fleet", "device", "width", "height", "dark"),
    [("drawn", "phone", 390, 844, False), ("mixed", "desktop", 1280, 900, True)],
)
def test_pictures(fleet: str, device: str, width: int, height: int, dark: bool, page: Callable[..., Browser]) -> None:
    browser = page(fleet, width=width, height=height, dark=dark)
    assert browser.script("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 23, 30)" if dark else "rgb(255, 255, 255)"
    )
    assert browser.screenshot(f"plan-{fleet}-{device}-{'dark' if dark else 'light'}").stat().st_size > 50_000


def test_printed_pages_are_light(page: Callable[..., Browser]) -> None:
    browser = page("drawn", dark=True)
    browser.script("dispatchEvent(new Event('beforeprint'))")
    ink = "document.querySelector('.chart').layout.font.color"
    assert browser.script(ink) == "#1c2430"
    browser.script("dispatchEvent(new Event('afterprint'))")
    assert browser.script(ink) == "#e6ebf1"

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lesson import __version__
from lesson.cli import cli, main
from lesson.cli.console import print_notes
from lesson.strategies import STRATEGIES, setting_names

pytestmark = pytest.mark.usefixtures("few_test_images")
COMMAND = [sys.executable, "-m", "lesson.cli"]


def run(*argv: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user has it."""
    return subprocess.run(
        [*COMMAND, *argv], capture_output=True, text=True, timeout=120, env=os.environ | (environment or {})
    )


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main(["plan", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_proposes_a_deadline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest of four takes 10 s, and a tenth more: 11 s, in which it is alone in tier 1."""
    path = tmp_path / "fleet.csv"
    path.write_text("client,latency_s\na,40\nb,12.3\nc,10\nd,30\n")
    plan = told(capsys, "--latencies", str(path), "--deadline", "auto")
    assert plan["deadline_s"] == 11.0
    assert {client["client"]: client["tier"] for client in plan["clients"]} == {"a": 4, "b": 2, "c": 1, "d": 3}
    assert main(["plan", "--latencies", str(path), "--deadline", "auto"]) == 0
    assert "deadline 11 s" in capsys.readouterr().out


def test_plan_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "50 clients (released, seed 0), deadline 20 s" in output.out
    assert "Other deadlines" in output.out


def test_json_holds_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    plan = told(capsys, "--clients", "20", "--seed", "3", "--rounds", "5", "--deadline", "15")
    assert len(plan["clients"]) == 20
    assert list(plan["clients"][0]) == ["client", "compute_s", "upload_s", "latency_s", "tier"]
    assert [list(tier) for tier in plan["tiers"]] == [["tier", "clients", "on_time"]] * len(plan["tiers"])
    assert {row["on_time"] for row in [*plan["tiers"], *plan["deadlines"]]} == {1.0}
    assert list(plan["round_s"]) == ["lesson", "fedavg", "fedcs"]
    assert [list(record) for record in plan["rounds"]] == [["round", "end_s", "tiers", "clients"]] * 5
    assert [record["end_s"] for record in plan["rounds"]] == [15.0, 30.0, 45.0, 60.0, 75.0]


def test_measured_latencies_give_the_tiers_written_down_by_hand(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("client,latency_s\nphone,0.3\ntablet,0.9\npi,2.1\nsensor,0.31\ngone,inf\n")
    plan = told(capsys, "--latencies", str(path), "--deadline", "0.3", "--rounds", "3")
    assert {client["client"]: client["tier"] for client in plan["clients"]} == {
        "phone": 1,
        "tablet": 3,
        "pi": 7,
        "sensor": 2,
        "gone": None,
    }
    assert plan["clients"][0] == {
        "client": "phone", "compute_s": None, "upload_s": None, "latency_s": 0.3, "tier": 1,
    }  # fmt: skip
    assert [record["clients"] for record in plan["rounds"]] == [["phone"], ["phone", "sensor"], ["phone", "tablet"]]
    assert plan["unreachable"] == ["gone"]


def test_a_client_is_promoted_only_on_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "slow.csv"
    path.write_text("client,latency_s\na,15\nb,25\n")
    fleet = ["--latencies", str(path), "--deadline", "10"]
    assert told(capsys, *fleet)["promoted"] is None
    assert told(capsys, *fleet)["round_s"]["fedcs"] is None
    asked = told(capsys, *fleet, "--set", "strategy.ensure_first_tier=true")
    assert asked["promoted"] == {"client": "a", "latency_s": 15.0}
    assert told(capsys, "--deadline", "1")["promoted"] is None


def test_settings_come_from_preset_file_and_changes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    printed = told(capsys, "--scenario", "printed")
    path = tmp_path / "mine.toml"
    path.write_text('preset = "printed"\n[strategy]\ndeadline_s = 7\n[fleet]\nnum_clients = 9\n')
    from_file = told(capsys, "--scenario", str(path))
    assert len(from_file["clients"]) == 9
    assert from_file["round_s"]["lesson"] == 7.0
    assert from_file["clients"] == [
        client | {"tier": tier["tier"]} for client, tier in zip(printed["clients"], from_file["clients"], strict=False)
    ]
    changed = told(capsys, "--scenario", str(path), "--set", "strategy.deadline_s=8", "--clients", "4")
    assert (len(changed["clients"]), changed["round_s"]["fedcs"]) == (4, 8.0)


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)


@pytest.mark.usefixtures("_no_network")
def test_phones_need_no_network(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """LeNet-5 has 61,706 values of 32 bits; the slowest and the fastest phone send 430.97 and 6635.41 kbit/s."""
    plan = told(capsys, "--scenario", "phones", "--clients", "200")
    upload_s = [client["upload_s"] for client in plan["clients"]]
    assert (min(upload_s), max(upload_s)) == pytest.approx((1974.592 / 6635.41, 1974.592 / 430.97), rel=1e-4)
    assert len(set(upload_s)) == 19
    assert [tier["tier"] for tier in plan["tiers"]] == [1, 2, 4, 5, 6]
    assert all(0 < tier["on_time"] < 1 for tier in plan["tiers"])
    assert any("latencies vary (throughput)" in note for note in plan["notes"])
    command = ["run", "--scenario", "phones", "--rounds", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main([*command, "--set", "fleet.num_clients=6"]) == 0
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert clients["clients"]["x_km"] is None


def test_the_same_seed_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """In another process too, whose hashes of strings differ."""
    other = run("plan", "--json", environment={"PYTHONHASHSEED": "1"}).stdout
    printed = []
    for seed in ("0", "1"):
        assert main(["plan", "--json", "--seed", seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == other
    assert printed[1] != other


def test_an_infinite_deadline_is_fedavg(capsys: pytest.CaptureFixture[str]) -> None:
    plan = told(capsys, "--deadline", "inf")
    assert plan["deadline_s"] is None
    assert plan["round_s"]["lesson"] == plan["round_s"]["fedavg"]
    assert plan["round_s"]["fedcs"] is None


def test_a_figure_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.pdf"
    assert main(["plan", "--figure", str(path)]) == 0
    assert path.read_bytes().startswith(b"%PDF")
    assert f"figure: {path}" in capsys.readouterr().out


def test_a_page_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    assert main(["plan", "--html", str(path)]) == 0
    assert path.read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out.endswith(f"page: {path}\n")
    assert told(capsys, "--html", str(path))["deadline_s"] == 20.0
    assert list(tmp_path.iterdir()) == [path]


def test_a_deadline_that_nine_of_ten_updates_meet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fading = ["--clients", "20", "--set", "radio.fading=rayleigh", "--set", "radio.coherence_s=5.0"]
    auto, page = [*fading, "--deadline", "auto"], tmp_path / "plan.html"
    proposed, plan = told(capsys, *auto), told(capsys, *auto, "--on-time", "0.97", "--html", str(page))
    shares = [{row["deadline_s"]: row["on_time"] for row in one["deadlines"]} for one in (proposed, plan)]
    assert shares[0][proposed["deadline_s"]] < 0.97 <= shares[1][plan["deadline_s"]]
    assert plan["deadline_s"] > proposed["deadline_s"]
    (note,) = (one for one in plan["notes"] if "latencies vary (fading)" in one)
    assert note in page.read_text()
    assert f'"fedavg_round_s":{plan["round_s"]["fedavg"]}' in page.read_text().replace(": ", ":")


LATENCIES = "client,latency_s\na,40\nb,12.3\nc,10\n"


@pytest.mark.parametrize(
    ("setting", "rows"),
    [
        ("trace", "client,round,compute_s,upload_s\na,1,30,10\nb,1,2,10.3\nc,1,4,6\nc,2,4,9\n"),
        ("presence", "client,from_s,to_s\na,0,1000\n"),
        ("estimate_error", ""),
    ],
)
def test_measured_clients_whose_times_vary(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, setting: str, rows: str
) -> None:
    """The file tells latencies alone, not what of them is computing."""
    (tmp_path / "fleet.csv").write_text(LATENCIES)
    (tmp_path / "rows.csv").write_text(rows)
    value = str(tmp_path / "rows.csv") if rows else "0.3"
    flags = ["--latencies", str(tmp_path / "fleet.csv"), "--deadline", "20", "--set", f"{setting}={value}"]
    plan = told(capsys, *flags)
    assert {who for record in plan["rounds"] for who in record["clients"]} == {"a", "b", "c"}
    assert 0.5 < plan["tiers"][0]["on_time"] <= 1
    assert plan["notes"][-1].startswith(f"latencies vary ({setting})")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "fading=rayleigh",
            "[radio] fading cannot be combined with measured latencies, which include no client positions",
        ),
        (
            "spectrum=equal",
            "[radio] spectrum cannot be combined with measured latencies, which include no client positions",
        ),
        (
            "speed_mps=[1,2]",
            "[radio] speed_mps cannot be combined with measured latencies, which include no client positions",
        ),
        (
            "slowdown=0.5",
            "[fleet] slowdown needs compute_s of every client; add the column to the file of latencies, or fill it in",
        ),
    ],
)
def test_plans_of_measured_latencies_reject_settings_that_need_positions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: str, message: str
) -> None:
    fleet = tmp_path / "fleet.csv"
    fleet.write_text(LATENCIES)
    written = ["--html", str(tmp_path / "plan.html"), "--figure", str(tmp_path / "plan.png")]
    assert main(["plan", "--latencies", str(fleet), "--set", change, *written]) == 2
    assert capsys.readouterr() == ("", f"lesson: {message}\n")
    assert list(tmp_path.iterdir()) == [fleet]


def test_a_client_without_the_compute_time_that_slowdown_needs_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An unreachable client needs none."""
    fleet = tmp_path / "fleet.csv"
    for rows, missing in (("d,5,\n", "'b' and 1 more have none"), ("d,5,4\n", "'b' has none")):
        fleet.write_text(f"client,latency_s,compute_s\ngone,inf,\na,40,30\nb,12.3,\n{rows}")
        assert main(["plan", "--latencies", str(fleet), "--set", "slowdown=0.5"]) == 2
        needs = "[fleet] slowdown needs compute_s of every client"
        assert capsys.readouterr().err == f"lesson: {needs}, but client {missing}; fill in the file of latencies\n"


def test_local_training_that_does_not_affect_the_latency_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--set", "training.local_epochs=1"]) == 0
    assert "note: local_epochs = 1 does not change the compute latency" in capsys.readouterr().out


BAD = [
    (["plan", "--deadline", "0"], "--deadline must be > 0, got 0"),
    (["plan", "--deadline", "-1"], "--deadline must be > 0, got -1"),
    (["plan", "--deadline", "nan"], "--deadline must be > 0, got nan"),
    (["plan", "--deadline", "soon"], "--deadline must be a number or auto, got 'soon'"),
    (["plan", "--deadline"], "--deadline must have a value, got none"),
    (["plan", "--figure", "--json"], "--figure must have a value, got '--json'"),
    (["run", "--out", "--resum"], "--out must have a value, got '--resum'"),
    (["plan", "--set", "a=1", "--set", "--json"], "--set must have a value, got '--json'"),
    (["--version=1"], "--version must have no value"),
    (["plan", "--json=yes"], "--json must have no value"),
    (["plan", "--seed", "1", "--seed", "2"], "--seed must be given once, got it twice"),
    (["report", ".", "-o", "a.html", "--output=b.html"], "--output must be given once, got it twice"),
    (["sweep"], "SETTINGS.toml must be given: a file with a table [sweep]; see 'lesson sweep --help'"),
    (["sweep", "--dry-run"], "SETTINGS.toml must be given: a file with a table [sweep]; see 'lesson sweep --help'"),
    (["sweep", "none.toml"], "none.toml does not exist; a sweep is a settings file with a table [sweep]"),
    (["sweep", "none.toml", "--entries", "lesson"], "--entries requires --tune"),
    (["sweep", "--tune", "--set", "run.rounds=2"], "--set cannot be combined with --tune: the file has the settings"),
    (["sweep", "--tune", "--entries", "lesson,leson"], "unknown entry 'leson'; did you mean 'lesson'?"),
    (["sweep", "--tune", "--seconds", "-1"], "--seconds must be >= 0, got -1"),
    (["sweep", "--tune", "--seconds", "nan"], "--seconds must be >= 0, got nan"),
    (["sweep", "none.toml", "--tune"], "none.toml does not exist; a tuned comparison is a file with [rules],"),
    (["sweep", "none.toml", "--engine", "dask"], "unknown engine 'dask'; available: local, ray"),
    (["sweep", "none.toml", "--cpus-per-trial", "0"], "--cpus-per-trial must be >= 1, got 0"),
    (
        ["sweep", "none.toml", "--address", "a:1"],
        "--address requires the engine ray",
    ),
    (["contest"], "'lesson contest' is now 'lesson sweep --tune'"),
    (["contest", "lesson", "--seconds", "60"], "'lesson contest' is now 'lesson sweep --tune'"),
    (["plan", "--on-time", "0.9"], "--on-time requires --deadline auto"),
    (["plan", "--deadline", "20", "--on-time", "0.9"], "--on-time requires --deadline auto"),
    (["plan", "--deadline", "auto", "--on-time", "0"], "--on-time must be > 0 and <= 1, got 0; use 0.9 for 90 %"),
    (["plan", "--deadline", "auto", "--on-time", "90"], "--on-time must be > 0 and <= 1, got 90"),
    (["plan", "--deadline", "auto", "--on-time", "nan"], "--on-time must be > 0 and <= 1, got nan"),
    (["plan", "--deadline", "auto", "--on-time", "often"], "--on-time must be a number, got 'often'"),
    (
        ["plan", "--deadline", "auto", "--on-time", "0.9"],
        "--on-time has no effect unless latencies vary; set fading, speed_mps, spectrum, snr_trace, throughput, "
        "positions, slowdown, trace, presence or estimate_error",
    ),
    (
        ["plan", "--latencies", "x.csv", "--deadline", "auto", "--on-time", "0.9"],
        "--on-time has no effect unless latencies vary; set slowdown, trace, presence or estimate_error",
    ),
    (["plan", "--clients", "0"], "[fleet] num_clients must be >= 1, got 0"),
    (["plan", "--clients", "1.5"], "--clients must be a whole number, got '1.5'"),
    (["plan", "--clients", "99999999999"], "[fleet] num_clients must be <= 10000000, got 99999999999"),
    (["plan", "--seed", "-1"], "[run] seed must be >= 0, got -1"),
    (["plan", "--rounds", "0"], "the number of rounds must be from 1 to 100000, got 0"),
    (["plan", "--scenario", "relased"], "unknown scenario 'relased'; did you mean 'released'?"),
    (["plan", "--scenario", "none.toml"], "none.toml does not exist; scenario must be a preset"),
    (["plan", "--latencies", "none.csv"], "none.csv does not exist; latencies must be a CSV file"),
    (["plan", "--latencies", "x.csv", "--clients", "5"], "--clients cannot be combined with --latencies"),
    (["plan", "--set", "radio.powr_w=1"], "[radio] unknown setting 'powr_w'; did you mean 'power_w'?"),
    (["plan", "--set", "radio.noise_dbm=1e5"], "no client can be reached: all 50 latencies are infinite"),
    (["plan", "--set", "fleet.area_km=5e-324"], "distance_km must be > 0, got 0.0 for client"),
    (["plan", "--figure", "plan.gif"], "figure must end in .png, .pdf, .svg, got 'plan.gif'"),
    (["plan", "--figure", "nowhere/plan.png"], "figure cannot be written: the folder 'nowhere' does not exist"),
    (["plan", "--html", "plan.txt"], "html must end in .html, .htm, got 'plan.txt'"),
    (["plan", "--html", "nowhere/plan.html"], "html cannot be written: the folder 'nowhere' does not exist"),
    (["plan", "--dedline", "3"], "unknown option '--dedline'; did you mean '--deadline'?"),
    (["plan", "extra"], "unexpected argument 'extra'; see 'lesson plan --help'"),
    (["strategies", "lesson", "more"], "unexpected argument 'more'; see 'lesson strategies --help'"),
    (["plan", "--dead", "3"], "unknown option '--dead'; did you mean '--deadline'?"),
    (["plan", "--on_time", "1"], "unknown option '--on_time'; did you mean '--on-time'?"),
    (["--json", "plan"], "unknown option '--json'; available: --help, --print-completion, --version"),
    (["plan", "--bogus"], "unknown option '--bogus'; available: --clients"),
    (["plan", "--clients", "None"], "--clients must be a whole number, got 'None'"),
    (["plan", "--rounds", "100001"], "the number of rounds must be from 1 to 100000, got 100001"),
    (["plan", "--set", "radio.power_w=" + "1" * 5000], "[radio] power_w must be a number, got '1111"),
    (["plan", "--set", "training.local_steps=" + "9" * 30], "[training] local_steps must be <= 1000000000, got 999"),
    (["plan", "--set", "radio.power_w=1\nx=2"], "[radio] power_w must be a number, got '1"),
    (["plan", "--set", "x\ny"], "a setting must be given as section.key=value, such as radio.power_w=0.2, got 'x y'"),
    (["plan", "--set", "training.theta=1e300"], "no client can be reached"),
    (
        ["plan", "--latencies", "/dev/zero"],
        "/dev/zero cannot be read: it must be a regular file, not a pipe or a device",
    ),
    (["plan", "--figure", "n" * 300 + ".png"], "figure cannot be written: 'nnnn"),
    (["plam"], "unknown command 'plam'; did you mean 'plan'? Available: compare, data, plan"),
    (["--print-completion", "tcsh"], "--print-completion must be one of: bash, fish, zsh, got 'tcsh'"),
    (["--print-completion"], "--print-completion must have a value, got none"),
    (["report", "--figures", "x"], "DIR must be given: the output folder of a run or a study"),
    (["report", "none", "other"], "--output or --figures must be given for several folders"),
    (
        ["report", "none", "--figures", "x"],
        "none does not exist; it must be the output folder of run, compare, sweep or reproduce",
    ),
    (
        ["report", ".", "--figures", "x"],
        ". holds no finished run; it must be the output folder of run, compare, sweep or reproduce",
    ),
    (["report", ".", "--figures", "x", "--format", "pdf,gif"], "unknown format 'gif'; available: pdf, png, svg"),
    (["report", ".", "--figures", "x", "--format", ""], "unknown format ''; available: pdf, png, svg"),
    (
        ["report", ".", "--figures", "x", "--width", "3.5"],
        "--width must be a number with the unit in, cm, mm or pt, such as",
    ),
    (["report", ".", "--figures", "x", "--width", "1mm"], "--width must be from 2in to 20in, got '1mm'"),
    (
        ["report", ".", "--figures", "x", "--width", "nanin"],
        "--width must be a number with the unit in, cm, mm or pt, such as",
    ),
    (["strategies", "leson"], "unknown strategy 'leson'; did you mean 'lesson'? Available: ca2fl, fadas, fedasync"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"lesson: {message}")
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_input_in_a_separate_process() -> None:
    result = run("plan", "--deadline", "-1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "lesson: --deadline must be > 0, got -1\n"


def test_help_shows_an_example_and_fits_the_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in [[], ["--help"], *([name, "--help"] for name in cli.commands)]:
        assert main(command) == 0
        output = capfd.readouterr()
        assert output.err == "", command
        assert "  Example: lesson" in output.out, command
        assert max(map(len, output.out.splitlines())) <= 80, command
        assert output.out.isascii(), command  # click would print anything else as UTF-8, whatever the terminal


def test_help_lists_every_command_and_global_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in [*cli.commands, "--version", "--print-completion", "-h, --help"]:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1, name
    assert not [line for line in lines[1:] if line.endswith("...")]  # click shortens a description that does not fit


@pytest.mark.parametrize("name", cli.commands)
def test_help_of_a_command_describes_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "-h"]) == 0
    printed = capsys.readouterr().out
    for param in cli.commands[name].params:
        shown = param.human_readable_name if isinstance(param, click.Argument) else param.opts[-1]
        assert shown in printed
        assert param.help
        assert param.help.endswith(".")


@pytest.mark.parametrize("argv", [["--help"], ["strategies"], ["run", "--help"]], ids=" ".join)
def test_commands_that_need_no_heavy_library_do_not_import_one(argv: list[str]) -> None:
    code = f"""
import sys
from lesson.cli import main
assert main({argv}) == 0
assert not {{"torch", "pandas", "scipy", "matplotlib"}} & sys.modules.keys()
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


COMPLETED = {
    "pl": ["plan"],
    "run --time": ["--time-budget"],
    "sweep --cpus": ["--cpus-per-trial"],
    "run --strategy fedb": ["fedbuff"],
    "strategies --nothing": [],
}
"""What the shell offers for what was typed."""
OFFERED = [word for words in COMPLETED.values() for word in words]


def complete(
    shell: list[str], load: str, press_tab: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Load the completion script into a shell that is installed; return what it prints for all of COMPLETED."""
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed; on Debian: apt install {shell[0]}")
    assert main(["--print-completion", shell[0]]) == 0
    (folder / "_lesson").write_text(capsys.readouterr().out)
    (folder / "lesson").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    (folder / "lesson").chmod(0o755)
    code = load + "".join(press_tab.format(typed=typed, place=len(typed.split())) for typed in COMPLETED)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    result = subprocess.run(
        [*shell, code], cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    return [line.partition("\t")[0] for line in result.stdout.splitlines() if line]


def test_bash_completes_commands_options_and_strategies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    press_tab = """
COMPREPLY=(); COMP_WORDS=(lesson {typed}); COMP_CWORD={place}; _lesson_completion lesson; echo "${{COMPREPLY[@]}}"
"""
    load = "source ./_lesson; complete -p lesson"
    registered = "complete -o nosort -F _lesson_completion lesson"
    assert complete(["bash", "-ec"], load, press_tab, tmp_path, capsys) == [registered, *OFFERED]


def test_bash_completes_the_last_of_several_strategies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"_LESSON_COMPLETE": "bash_complete", "COMP_WORDS": "lesson compare --strategies lesson,fedb"}
    assert run(environment=asked | {"COMP_CWORD": "3"}).stdout == "plain,lesson,fedbuff\n"


@pytest.mark.slow
def test_fish_completes_commands_options_and_strategies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    press_tab = "; complete -C 'lesson {typed}'"
    assert complete(["fish", "--no-config", "-c"], "source ./_lesson", press_tab, tmp_path, capsys) == OFFERED


@pytest.mark.slow
def test_zsh_completes_commands_options_and_strategies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Outside of its line editor, zsh cannot be asked for completions: functions that record them stand in."""
    load = """
autoload -U compinit; compinit -u -D; source ./_lesson; print $_comps[lesson]
compadd() { print -rl -- $completions }
_describe() { print -rl -- ${completions_with_descriptions%%:*} }
"""
    press_tab = "words=(lesson {typed}); CURRENT=$#words; _lesson_completion\n"
    assert complete(["zsh", "-fc"], load, press_tab, tmp_path, capsys) == ["_lesson_completion", *OFFERED]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lesson {__version__}\n"


def test_strategies_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("fedavg", "fedcs", "lesson", "Semi-synchronous rounds"))
    assert main(["strategies", "lesson"]) == 0
    assert "late (default merge): What happens to an update that arrives after its slot: " in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_option_of_a_strategy_is_described(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies", name]) == 0
    shown = capsys.readouterr().out
    for option in setting_names(STRATEGIES[name]):
        assert re.search(rf"^  {option} \([\w .-]+\): [A-Z]", shown, re.MULTILINE), option


def test_terminals_without_unicode_get_plain_letters() -> None:
    result = run("plan", environment={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert "tier 1 x 11  ====*" in result.stdout
    assert "?" not in result.stdout


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([*COMMAND, "plan"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (2, "lesson: the output cannot be written: No space left on device\n")


def test_names_are_not_read_as_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "$x^{$日本.csv").write_text("client,latency_s\na,1\n")
    flags = ["--latencies", str(tmp_path / "$x^{$日本.csv"), "--figure", str(tmp_path / "plan.png")]
    assert main(["plan", *flags]) == 0
    assert capsys.readouterr().err == ""


def test_numbers_at_the_ends_of_floating_point_print_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.csv").write_text("client,latency_s\na,1e-320\nb,1e300\n")
    for flags in (
        ["--set", "fleet.energy_kappa=1e300"],
        ["--set", "radio.path_loss_slope_db=1e300"],
        ["--latencies", str(tmp_path / "tiny.csv")],
    ):
        assert main(["plan", *flags]) == 0, flags
        assert capsys.readouterr().err == "", flags


def test_a_reader_that_leaves_is_no_error() -> None:
    command = [*COMMAND, "plan", "--json", "--clients", "50000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as producer:
        assert producer.stdout is not None
        assert producer.stderr is not None
        producer.stdout.read(10)
        producer.stdout.close()
        assert producer.stderr.read() == b""
        assert producer.wait(60) == 0


def test_only_the_first_of_many_notes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_notes(["a", "b", "a", "c", "d"])
    assert capsys.readouterr().out.splitlines() == ["note: a", "note: b", "note: c", "note: d"]
    print_notes("abcdefg")
    assert capsys.readouterr().out.splitlines()[-2:] == ["note: e", "note: metrics.jsonl has more notes"]


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--rounds", "int" * 40_000],
        ["run", "--rounds", "Error parsing int: " * 6000],
        ["run", f"--{'int' * 40_000}"],
        ["report", "folder", "--width", "1" * 120_000],
    ],
    ids=["value", "message", "option", "width"],
)
def test_long_words_on_the_command_line_are_rejected_at_once(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each took minutes when matching a regular expression, or looking for similar options, took quadratic time."""
    assert main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_plan_says_which_options_it_ignores(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--clients", "4", "--deadline", "100", "--set", "strategy.close_early=false", "--json"])
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "a plan shows LESSON with its default options: strategy.close_early has no effect" in notes

"""Studies as pictures: in notebooks, and as files for a paper."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread

from helpers.run_folders import make_comparison, make_run, make_sweep
from lesson import InputError, load
from lesson.cli import main
from lesson.cli.report import inches
from lesson.core.errors import RunStoppedError
from lesson.experiments.loading import load_study
from lesson.experiments.measures import means
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.report.files import save_figures
from lesson.report.palette import strategy_looks
from lesson.report.study.compare_text import cell
from lesson.report.study.figures import draw_figures
from lesson.report.study.groups import groups_of
from lesson.strategies import STRATEGIES

NAMES = ["accuracy_energy", "accuracy_round", "accuracy_time", "accuracy_uploads", "clients", "latency"]
NAMES += ["time_to_accuracy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    make_comparison(out)
    return out


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return load_study([folder])


@pytest.fixture(scope="module")
def drawn(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every figure in every format, 89 mm wide."""
    out = tmp_path_factory.mktemp("drawn") / "new" / "figures"
    assert main(["report", str(folder), "--figures", str(out), "--format", "pdf,svg,png", "--width", "89mm"]) == 0
    return out


def test_every_strategy_has_a_look_of_its_own_whoever_else_is_there() -> None:
    looks = dict(zip(STRATEGIES, strategy_looks(list(STRATEGIES)), strict=True))
    assert len(set(looks.values())) == len(STRATEGIES)
    assert strategy_looks(["tifl", "mine:Own", "lesson"])[::2] == [looks["tifl"], looks["lesson"]]
    assert len(set(strategy_looks(["fedbuff", "a:A", "b:B", "lesson"]))) == 4


def test_a_plot_is_the_mean_with_a_band(study: Study) -> None:
    """Seeds 0, 1, 2 differ by 0.01, 0.02: the mean is 0.01 above the first, at the times of evaluations."""
    figure = study.plot()
    fedavg, lesson = figure.axes[0].lines
    assert lesson.get_xdata().tolist() == [100, 200, 300, 400, 500, 600]
    assert lesson.get_ydata().tolist() == pytest.approx([0.31, 0.51, 0.61, 0.71, 0.81, 0.91])
    assert [to_hex(line.get_color()).upper() for line in (fedavg, lesson)] == ["#D55E00", "#0072B2"]
    assert len(figure.axes[0].collections) == 2
    assert figure.axes[0].get_title() == "mnist, β = 1, τ = 20 s, 600 s"
    over_rounds = study.plot(by="round").axes[0]
    assert over_rounds.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert over_rounds.get_xlabel() == "global rounds"
    with pytest.raises(InputError, match="unknown axis 'rounds'; did you mean 'round'"):
        study.plot(by="rounds")  # type: ignore[arg-type]


def test_a_run_plots_its_own_line(folder: Path) -> None:
    run = load(folder / "lesson-seed0")
    assert isinstance(run, Run)
    line = run.plot().axes[0].lines[0]
    assert line.get_ydata().tolist() == [0.3, 0.5, 0.6, 0.7, 0.8, 0.9]


@pytest.mark.slow
def test_plots_need_no_display_and_no_pyplot(folder: Path) -> None:
    code = (
        f"import sys, lesson; figure = lesson.load({str(folder)!r}).plot(); assert figure._repr_png_()[1:4] == b'PNG'; "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MPLBACKEND")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_cards_hold_the_numbers_and_nothing_from_elsewhere(study: Study) -> None:
    """Of six evaluations only the last, 90 %, counts as the end: over three seeds 91.0 ± 2.5; 6 · 50 J = 0.3 kJ."""
    card = study._repr_html_()
    assert "6 runs" in card
    assert all(text in card for text in ("fedavg", "lesson", "91.0 ± 2.5", "#0072B2", "0.3 ± 0.0"))
    assert not re.search(r"https?:|<script|<link|src=", card)
    assert repr(study) == "Study(6 runs, 3 seeds, by strategy)"
    run = study.runs[-1]
    assert repr(run).startswith("Run(lesson on mnist, seed 2: accuracy 0.9200 after 6 rounds, 600 s; ")
    card = run._repr_html_()
    assert all(
        text in card for text in ("92.0%", "50% at 400 s", "6 rounds, 600 simulated seconds", "24, 0.0 MB, 0.3 kJ")
    )


def test_cards_escape_text(tmp_path: Path) -> None:
    make_sweep(tmp_path / "<b>")
    study = load_study([tmp_path / "<b>"])
    card = study._repr_html_()
    assert "x is not included: no &lt;reason&gt;" in card
    assert "–" in card, "an option that a strategy has not"
    assert "/&lt;b&gt;/" in study.runs[0]._repr_html_()
    assert Study([])._repr_html_()


def test_groups_of_a_sweep_have_the_colour_of_their_strategy(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    groups = groups_of(load_study([tmp_path]))
    assert [group.name for group in groups] == [
        "lesson, β = 1, late = drop",
        "lesson, β = 0.1, late = drop",
        "nowhere:Mine, β = 1",
        "nowhere:Mine, β = 0.1",
    ]
    assert [group.look for group in groups[:2]] == [("#0072B2", "-"), ("#0072B2", "--")]
    assert len({group.look for group in groups}) == 4


@pytest.mark.parametrize(
    ("width", "wanted"), [("3.5in", 3.5), ("12 cm", 12 / 2.54), ("89mm", 89 / 25.4), ("252pt", 3.5)]
)
def test_lengths(width: str, wanted: float) -> None:
    assert inches(width) == pytest.approx(wanted)


def test_figures_are_as_wide_as_asked_in_every_format(drawn: Path) -> None:
    for name in NAMES:
        path = drawn / name
        page, drawing = path.with_suffix(".pdf").read_bytes(), path.with_suffix(".svg").read_text()
        assert float(re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", page)[1]) == pytest.approx(72 * 89 / 25.4, abs=0.01)  # type: ignore[index]
        assert float(re.search(r'<svg [^>]*width="([\d.]+)pt"', drawing)[1]) == pytest.approx(72 * 89 / 25.4, abs=0.01)  # type: ignore[index]
        assert imread(path.with_suffix(".png")).shape[1] == pytest.approx(300 * 89 / 25.4, abs=1)
        assert b"/FontFile2" in page
        assert b"/Type3" not in page
        assert "<text" not in drawing, "letters that depend on installed fonts"


def test_the_same_runs_give_the_same_bytes(
    folder: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--figures", str(tmp_path / "again"), "--format", "pdf,svg,png", "--width", "89mm"]
    assert main(["report", str(folder), *flags]) == 0
    assert f"figure: {tmp_path / 'again' / 'clients.pdf'}" in capsys.readouterr().out
    names = sorted(path.name for path in drawn.iterdir())
    assert names == sorted(f"{name}.{kind}" for name in NAMES for kind in ("pdf", "png", "svg"))
    for name in names:
        assert (drawn / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_letters_are_7_or_8_points_high_and_nothing_leaves_the_page(study: Study, tmp_path: Path) -> None:
    make_sweep(tmp_path)
    for drawn in (study, load_study([tmp_path])):
        for name, figure in draw_figures(drawn, 3.5)[0].items():
            texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
            assert {text.get_fontsize() for text in texts} <= {7, 8}, name
            box = figure.get_tightbbox()
            assert min(box.x0, box.y0) > -0.02, name
            assert box.x1 < 3.52, name


def test_times_are_dots_with_intervals_or_how_many_seeds_arrive(tmp_path: Path) -> None:
    """Means of three from 300 s on: 0.47, 0.6, 0.7, 0.8, a hundredth more with each seed; 0.2 less of the slow."""
    make_comparison(tmp_path, ("lesson",))
    make_run(tmp_path / "slow", better=-0.2, strategy={"name": "fedavg"})
    figure = draw_figures(load_study([tmp_path]), 3.5)[0]["time_to_accuracy"]
    dots = {bar.get_label(): bar.lines[0].get_xdata().tolist() for bar in figure.axes[0].containers}
    assert dots["lesson"] == [400, 400, 500, 600]
    np.testing.assert_array_equal(dots["fedavg"], [500, 600, np.nan, np.nan])
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said == ["0 of 1 seeds"] * 2


def test_what_cannot_be_drawn_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was slow and poor, in a folder of an older version."""
    make_run(tmp_path / "run", joules=None, better=-0.6)
    (tmp_path / "run" / "clients.json").unlink()
    assert main(["report", str(tmp_path / "run"), "--figures", str(tmp_path / "out")]) == 0
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == NAMES[1:4]
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: no figure of times to targets: no run reached 50% in three consecutive evaluations",
        "note: no figures of clients: run has no clients.json, or it contains no latencies",
    ]


def keep_clients(path: Path, **columns: list[float | None] | None) -> None:
    """A run of LESSON, τ = 20 s, with four clients of a hundred written down; the third is in tier 1 by promotion."""
    make_run(path)
    kept = {
        "number": [0, 7, 8, 99],
        "name": ["0", "7", "8", "99"],
        "accuracy": [0.9, 0.9, 0.9, None],
        "compute_s": [30.0, 40.0, 15.0, None],
        "upload_s": [11.0, 5.0, 5.0, None],
    }
    kept |= {"latency_s": [41.0, 45.0, 20.0, None], "x_km": [0.1, 0.2, 0.3, 0.4], "y_km": [0.0, 0.0, 0.5, -0.5]}
    told = {"num_clients": 100, "class_accuracy": [0.9], "promoted": {"client": 8, "latency_s": 40.5}}
    told["clients"] = kept | columns
    (path / "clients.json").write_text(json.dumps(told))


def test_clients_are_drawn_as_the_run_had_them(tmp_path: Path) -> None:
    keep_clients(tmp_path / "run")
    figures, notes = draw_figures(load_study([tmp_path / "run"]), 3.5)
    served, lost = figures["clients"].axes[0].collections[:2]
    assert np.asarray(served.get_offsets()).tolist() == [[0.1, 0.0], [0.2, 0.0], [0.3, 0.5]]
    assert np.asarray(lost.get_offsets()).tolist() == [[0.4, -0.5]]
    assert [text.get_text() for text in figures["clients"].legends[0].get_texts()] == ["tier 1 × 1", "tier 3 × 2"]
    assert figures["clients"].axes[0].get_title() == "4 of 100 clients"
    lines = {str(line.get_label()): line.get_xdata() for line in figures["latency"].axes[0].lines}
    assert list(lines["latency (sum)"]) == [41.0, 45.0, 20.0]
    assert list(lines["upload time"]) == [11.0, 5.0, 5.0]
    assert notes == []


def test_figures_tell_which_runs_are_not_in_them(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    (tmp_path / "lesson-seed1" / "summary.json").unlink()
    _, notes = draw_figures(load_study([tmp_path]), 3.5)
    assert notes[0].startswith("lesson-seed1 is not included: it has not finished; ")


def test_of_measured_clients_there_is_no_map(tmp_path: Path) -> None:
    keep_clients(tmp_path / "run", x_km=None, y_km=None, compute_s=[None] * 4, upload_s=[None] * 4)
    figures, notes = draw_figures(load_study([tmp_path / "run"]), 3.5)
    assert ("clients" in figures, "latency" in figures) == (False, True)
    assert notes == ["no map of clients: their positions are unknown"]


@pytest.mark.parametrize(("clients", "deadline_s"), [(1, 0.5), (3, float("inf")), (7000, 20.0)])
def test_odd_fleets_are_drawn(clients: int, deadline_s: float, tmp_path: Path) -> None:
    make_run(tmp_path / "run", fleet={"num_clients": clients}, strategy={"deadline_s": deadline_s})
    figures, _ = draw_figures(load_study([tmp_path / "run"]), 3.5)
    assert {"clients", "latency"} <= set(figures)


def test_figures_that_cannot_be_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").touch()
    assert main(["report", str(folder), "--figures", str(tmp_path / "taken" / "in")]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"lesson: figures cannot be written: '{tmp_path}/taken/in' cannot be created: Not a dir")
    assert (told.err.count("\n"), told.out) == (1, "")
    assert main(["report", str(folder), "--figures", "/proc"]) == 2
    assert capsys.readouterr().err.startswith("lesson: /proc/accuracy_time.pdf cannot be written: ")


def test_if_one_figure_fails_none_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def full(file: int) -> None:
        synced.append(file)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunStoppedError, match=r"b.pdf cannot be written: No space left on device; free some"):
        save_figures({"a": Figure(), "b": Figure()}, tmp_path, [".pdf"])
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_of_a_figure_goes_with_the_next(tmp_path: Path) -> None:
    (tmp_path / ".a.pdf.aside").write_bytes(b"%PDF half")
    save_figures({"a": Figure()}, tmp_path, [".pdf"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.pdf"]


def figures_of(*values: float, name: str = "accuracy_last10") -> dict[str, float]:
    return means(pd.DataFrame({name: values}), [name], [])


def test_intervals_stay_within_what_is_possible() -> None:
    """1, 2, 3 MB: half an interval is 2.48. 0.7, 0.8, 0.99: it is 0.366 around 0.83."""
    assert cell(figures_of(0.80, 0.81, 0.82), "accuracy_last10", 100, 1) == "81.0 ± 2.5"
    assert cell(figures_of(0.70, 0.80, 0.99), "accuracy_last10", 100, 1) == "83.0 (46.4–100.0)"
    assert cell(figures_of(1e6, 2e6, 3e6, name="bytes_up"), "bytes_up", 1e-6, 1) == "2.0 (0.0–4.5)"


def test_two_seeds_are_shown_as_they_are() -> None:
    assert cell(figures_of(0.93, 0.91), "accuracy_last10", 100, 1) == "91.0 / 93.0"
    assert cell(figures_of(0.93), "accuracy_last10", 100, 1) == "93.0"

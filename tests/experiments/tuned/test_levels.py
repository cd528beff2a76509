"""Groups with levels: which entries they have, what is shared, what is drawn, and which files are rejected."""

from pathlib import Path

import numpy as np
import pytest

from helpers.tuned import FILE, everything, small
from lesson.core.errors import InputError
from lesson.experiments.naming import run_name
from lesson.report.tuned.levels import SPREAD, draw_levels
from lesson.report.tuned.write import write_tuned
from lesson.settings.settings import Settings

LEVELS = """
[groups.shadowing]
title = "Shadowing"
references = ["far, 0 dB"]
[groups.shadowing.levels]
"0 dB" = {}
"8 dB" = { "radio.shadowing_db" = 8.0 }

[groups.fading]
title = "Fading"
references = ["far, none"]
[groups.fading.levels]
"none" = {}
"rayleigh" = { "radio.fading" = "rayleigh", "strategy.scaling" = false }

[[entries]]
name = "far"
group = ["shadowing", "fading"]
fleet = { area_km = 3.0 }
strategy = { name = "lesson" }

[[entries]]
name = "near"
group = "shadowing"
fleet = { area_km = 1.0 }
"""
WITH_LEVELS = FILE[: FILE.index("[groups.strategies]")] + LEVELS


def test_an_entry_takes_part_at_each_level_of_each_of_its_groups(tmp_path: Path) -> None:
    design = small(tmp_path, WITH_LEVELS)
    assert [entry.name for entry in design.entries] == [
        *("far, 0 dB", "far, 8 dB", "far, none", "far, rayleigh", "near, 0 dB", "near, 8 dB"),
    ]
    faded = design.by_name["far, rayleigh"]
    assert (faded.group, faded.line, faded.level) == ("fading", "far", "rayleigh")
    settings = faded.settings({}, 1.0, 0, design.rules)
    assert (settings.fleet.area_km, settings.radio.fading) == (3.0, "rayleigh")
    assert settings.strategy.options == {"scaling": False}
    same = [design.by_name[name].settings({}, 1.0, 0, design.rules) for name in ("far, 0 dB", "far, none")]
    assert run_name(same[0]) == run_name(same[1])


def worse(settings: Settings) -> list[float]:
    """80 % from 300 s on, with shadowing 40 %; whoever is near never gets beyond 60 % in one seed."""
    best = 0.4 if settings.radio.shadowing_db else 0.8
    best = 0.6 if settings.fleet.area_km == 1.0 and settings.run.seed == 1 else best
    return [0.1, 0.1, *[best] * 6]


def test_collapsed_runs_are_open_circles_or_crosses(tmp_path: Path) -> None:
    """Far clients collapse with one of two seeds at 8 dB, near ones with both."""

    def collapsing(settings: Settings) -> list[float]:
        far = settings.fleet.area_km == 3.0
        return [0.1 if settings.radio.shadowing_db and (settings.run.seed == 1 or not far) else 0.8] * 8

    design = small(tmp_path, WITH_LEVELS)
    figures = design.study(everything(design, collapsing), {}).table()
    figure = draw_levels(design, design.groups[0], figures[figures["group"] == "shadowing"])
    marks = {
        mark: [
            np.asarray(line.get_xydata()).round(6).tolist()
            for line in figure.axes[0].lines
            if line.get_marker() == mark[0] and (line.get_markerfacecolor() == "white") == (mark == "open")
        ]
        for mark in ("open", "x")
    }
    assert marks["open"] == [[[1 - SPREAD / 2, 80.0]]]
    layers = [(line.get_zorder(), line.get_markerfacecolor() == "white") for line in figure.axes[0].lines]
    assert max(layers)[1], "no filled circle covers the open one"
    assert [points for points in marks["x"] if points] == [[[1 + SPREAD / 2, 10.0]]]


def test_lines_go_from_level_to_level(tmp_path: Path) -> None:
    design = small(tmp_path, WITH_LEVELS)
    study = design.study(everything(design, worse), {})
    figures = study.table()
    figure = draw_levels(design, design.groups[0], figures[figures["group"] == "shadowing"])
    accuracy, time = figure.axes[0], figure.axes[1]
    far, near = ([line for line in accuracy.lines if line.get_marker() == "o"][place] for place in (0, 1))
    assert np.asarray(far.get_xydata()) == pytest.approx(np.array([[-SPREAD / 2, 80.0], [1 - SPREAD / 2, 40.0]]))
    assert np.asarray(near.get_xydata()) == pytest.approx(np.array([[SPREAD / 2, 70.0], [1 + SPREAD / 2, 50.0]]))
    # 80 % in the mean of three is there at 500 s, and 50 % at 400 s: (0.1 + 2·0.8) / 3 = 0.57. At 8 dB `far` never is,
    # and `near` in one seed of two: a cross at the end.
    dots, crosses = ([line for line in time.lines if line.get_marker() == mark] for mark in ("o", "x"))
    assert np.asarray(dots[0].get_xydata())[0] == pytest.approx([-SPREAD / 2, 0.4])
    assert [np.asarray(line.get_xydata()).tolist() for line in crosses] == [
        [[pytest.approx(1 - SPREAD / 2), 0.8]],
        [[pytest.approx(1 + SPREAD / 2), 0.8]],
    ]
    assert [tick.get_text() for tick in accuracy.get_xticklabels()] == ["0 dB", "8 dB"]
    page = write_tuned(study, tmp_path, [".svg"]).read_text()
    assert (tmp_path / "levels-shadowing.svg").exists()
    assert "levels-shadowing.png" in page
    assert "accuracy-shadowing.png" not in page
    assert "Each entry was tuned" not in page


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"radio.shadowing_db"', '"shadowing_db"', 'levels must have keys "section.key" with one of fleet, radio'),
        ('"radio.shadowing_db"', '"run.seed"', 'levels must have keys "section.key" with one of fleet, radio'),
        ('db" = 8.0', 'db" = -8.0', "entry 'far, 8 dB': [radio] shadowing_db must be >= 0"),
        ('"shadowing", "fading"', '"shadowing", "fadign"', "unknown group 'fadign'; did you mean 'fading'"),
        ("{ area_km = 3.0 }", "3.0", "entry 'far, 0 dB': fleet must be a table"),
        ('"none" = {}', '"none" = 3', "levels must be a table of tables"),
        ('"far, none"', '"far"', "unknown entry 'far'"),
    ],
)
def test_wrong_levels_are_rejected(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as told:
        small(tmp_path, WITH_LEVELS.replace(old, new))
    assert complaint in str(told.value)

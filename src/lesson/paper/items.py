"""The paper's figures and tables by name. A small TOML file per item describes what it shows and the runs it needs.

A run is identified by its series (strategy, data set and every setting that differs from `base_settings`) and its seed.
Items that need the same series share its runs, which are as long as the longest of all items requires, so that no run
is executed twice.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lesson.core.errors import unknown
from lesson.experiments.grid import make_grid
from lesson.experiments.naming import run_name
from lesson.paper.scale import Scale
from lesson.settings.settings import SECTIONS, Settings

FOLDER = Path(__file__).parent / "items"
TABLES_AND_FIGURES = ("table1", "table2", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9")
ON_REQUEST = ("literal", "scaled", "iterations", "epoch", "mnist", "reasons")
"""Items that run only if they are named: checks beyond the paper's figures and tables."""
NAMES = (*TABLES_AND_FIGURES, "limits", "printed", "authors", "choices", *ON_REQUEST)
STEP_SIZES = {"0.1": "", "0.02": "-learning_rate=0.02"}
"""Suffix of a series' name for each step size δ."""


@cache
def base_settings(preset: str = "released") -> Settings:
    """Return the settings of a preset; under `released`, tier 1 is never empty, as in the authors' code."""
    return Settings(preset=preset, ensure_first_tier=preset == "released")


@dataclass(frozen=True)
class Item:
    """A figure or table, as described by its TOML file."""

    name: str
    title: str
    paper: str
    """The part of the paper that it reproduces or examines, such as "Fig. 2" or "Section V-A"."""
    draw: str
    """Key of the function that draws it, see `lesson.report.paper.write`."""
    options: Mapping[str, Any]
    panels: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    blocks: Sequence[Mapping[str, Any]]
    """Groups of runs: settings, with the swept values in the table `sweep`."""

    @property
    def path(self) -> Path:
        """The TOML file of this item."""
        return FOLDER / f"{self.name}.toml"

    def settings(self, scale: Scale) -> dict[str, Settings]:
        """Return the settings of its runs by run name."""
        found = {}
        for block in self.blocks:
            sections: dict[str, Any] = {name: dict(block.get(name, {})) for name in SECTIONS}
            base = base_settings(block.get("preset", "released"))
            sections["preset"] = base.preset
            sections["strategy"].setdefault("ensure_first_tier", base.strategy.ensure_first_tier)
            scale.adapt(sections)
            axes = dict(block["sweep"])
            if scale.quick:
                axes.pop("data.dataset", None)
            for settings in make_grid(sections, axes, scale.seeds).runs.values():
                found[run_name(settings, usual=base)] = settings
        return found


def load_item(name: str) -> Item:
    """Return the item of this name."""
    if name not in NAMES:
        raise unknown("item", name, [*NAMES, "all"])
    values = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    tables = {key: values.get(key, default) for key, default in (("options", {}), ("panels", ()), ("rows", ()))}
    return Item(name, values["title"], values["paper"], values["draw"], blocks=values.get("runs", ()), **tables)


def select_items(names: Iterable[str]) -> list[Item]:
    """Return the named items in the paper's order: all of them for "all", all but `ON_REQUEST` if `names` is empty."""
    chosen = set(names) or set(NAMES) - set(ON_REQUEST)
    for name in chosen - {"all"}:
        load_item(name)
    return [load_item(name) for name in NAMES if "all" in chosen or name in chosen]


def wanted_runs(items: Iterable[Item], scale: Scale) -> dict[str, Settings]:
    """Return the settings of these items' runs by name, each with the most rounds that any item in `NAMES` needs."""
    longest: dict[str, Settings] = {}
    for item in map(load_item, NAMES):
        for name, settings in item.settings(scale).items():
            if name not in longest or (settings.run.rounds or 0) > (longest[name].run.rounds or 0):
                longest[name] = settings
    return {name: longest[name] for item in items for name in item.settings(scale)}

"""The settings of a run from Flower's run config, which the server and all clients share."""

import shlex
from collections.abc import Mapping
from typing import Any

from lesson.core.errors import InputError, unknown
from lesson.learn.tasks import BUILT_IN
from lesson.settings.loading import load_settings
from lesson.settings.settings import Settings
from lesson.strategies import find_strategy

AUTO = "auto"
CLOCKS = (AUTO, "virtual", "wall")
DEFAULTS: dict[str, Any] = {
    "scenario": "released",
    "strategy": "lesson",
    "dataset": "mnist",
    "beta": 1.0,
    "deadline": AUTO,
    "rounds": 0,
    "time-budget": 0.0,
    "eval-every": 0.0,
    "seed": 0,
    "set": "",
    "clock": AUTO,
    "min-nodes": 2,
    "out": "",
    "resume": False,
}
"""Keys that `flwr run -c` accepts. For rounds, time-budget and eval-every, 0 keeps the value of the preset or settings
file."""


KINDS = {str: "a string", float: "a number", int: "a whole number", bool: "true or false"}


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run config completed by the defaults; raise InputError if a name, type or choice is wrong."""
    for name, value in config.items():
        if name not in DEFAULTS:
            raise unknown("run config", name, DEFAULTS)
        usual = DEFAULTS[name]
        if name != "deadline" and not _same_kind(value, usual):
            raise InputError(f"{name} must be {KINDS[type(usual)]} such as {usual!r}, got {value!r}")
    whole = DEFAULTS | dict(config)
    if whole["clock"] not in CLOCKS:
        raise unknown("clock", str(whole["clock"]), CLOCKS)
    _check_dataset(whole["dataset"])
    if ":" not in whole["strategy"]:  # others are for the server alone: clients import nothing that a server names
        find_strategy(whole["strategy"])
    deadline_of(whole)
    return whole


def _check_dataset(name: str) -> None:
    """Raise InputError unless a task is built in: an app gives its own task in its own code, so no name is imported."""
    if name not in BUILT_IN:
        raise unknown("dataset", name, BUILT_IN)


def deadline_of(config: Mapping[str, Any]) -> float | None:
    """Return the deadline in seconds; None for 'auto'; raise InputError if it is invalid."""
    given = config["deadline"]
    if given == AUTO:
        return None
    try:
        if not isinstance(given, bool) and (deadline_s := float(given)) > 0:
            return deadline_s
    except ValueError:
        pass
    raise InputError(f"deadline must be a number of seconds > 0 or 'auto', got {given!r}")


def settings_of(config: Mapping[str, Any], num_clients: int, deadline_s: float | None = None) -> Settings:
    """Return the settings of a run with `num_clients` clients; `deadline_s` replaces that of the run config."""
    try:
        changes = shlex.split(config["set"])
    except ValueError as error:
        raise InputError(f"set must be KEY=VALUE pairs separated by spaces, got {config['set']!r}: {error}") from None
    given = {name: value for name, value in config.items() if value != DEFAULTS[name]}
    flags = {
        "fleet.num_clients": num_clients,
        "data.dataset": given.get("dataset"),
        "data.beta": float(given["beta"]) if "beta" in given else None,
        "strategy.name": given.get("strategy"),
        "strategy.deadline_s": deadline_of(config) if deadline_s is None else deadline_s,
        "run.seed": given.get("seed"),
        "run.rounds": config["rounds"] or None,
        "run.time_budget_s": float(config["time-budget"]) or None,
        "run.eval_every_s": float(config["eval-every"]) or None,
        "run.device": "cpu",
    }
    settings = load_settings(config["scenario"], changes, flags)
    if settings.fleet.latencies:
        raise InputError("[fleet] latencies must not be set on Flower, where clients are real; leave it unset")
    _check_dataset(settings.data.dataset)  # `set` and a settings file can change it, too
    return settings


def _same_kind(value: Any, usual: Any) -> bool:
    if isinstance(usual, bool) or isinstance(value, bool):
        return type(value) is type(usual)
    return isinstance(value, type(usual)) or (isinstance(usual, float) and isinstance(value, int))

"""Registry of strategies. To add one, write its file and add a line to STRATEGIES."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lesson.core.errors import InputError, raised_inside, unknown
from lesson.core.plugins import load_named
from lesson.fleet.fleet import Fleet
from lesson.settings.loading import apply_changes
from lesson.strategies.ace import ACE
from lesson.strategies.base import Strategy
from lesson.strategies.ca2fl import CA2FL
from lesson.strategies.fadas import FADAS
from lesson.strategies.fedasync import FedAsync
from lesson.strategies.fedat import FedAT
from lesson.strategies.fedavg import FedAvg
from lesson.strategies.fedbuff import FedBuff
from lesson.strategies.fedcompass import FedCompass
from lesson.strategies.fedcs import FedCS
from lesson.strategies.fedcs_greedy import FedCSGreedy
from lesson.strategies.fedqueue import FedQueue
from lesson.strategies.fedsasync import FedSaSync
from lesson.strategies.lesson import Lesson
from lesson.strategies.lesson_fitted import LessonFitted
from lesson.strategies.malenia import Malenia
from lesson.strategies.oort import Oort
from lesson.strategies.refl import Refl
from lesson.strategies.rennala import Rennala
from lesson.strategies.rescaled_asgd import RescaledASGD
from lesson.strategies.ringleader import Ringleader
from lesson.strategies.ringmaster import Ringmaster
from lesson.strategies.safa import Safa
from lesson.strategies.semisync_steps import SemiSyncSteps
from lesson.strategies.tifl import TiFL

STRATEGIES: dict[str, type[Strategy]] = {
    "ace": ACE,
    "ca2fl": CA2FL,
    "fadas": FADAS,
    "fedasync": FedAsync,
    "fedat": FedAT,
    "fedavg": FedAvg,
    "fedbuff": FedBuff,
    "fedcompass": FedCompass,
    "fedcs": FedCS,
    "fedcs-greedy": FedCSGreedy,
    "fedqueue": FedQueue,
    "fedsasync": FedSaSync,
    "lesson": Lesson,
    "lesson-fitted": LessonFitted,
    "malenia": Malenia,
    "oort": Oort,
    "refl": Refl,
    "rennala": Rennala,
    "rescaled-asgd": RescaledASGD,
    "ringleader": Ringleader,
    "ringmaster": Ringmaster,
    "safa": Safa,
    "semisync-steps": SemiSyncSteps,
    "tifl": TiFL,
}


def find_strategy(name: str) -> type[Strategy]:
    """Return the strategy class registered under a name, or given as module:Class.

    Modules are also searched for in the current folder.
    """
    if ":" not in name:
        if name not in STRATEGIES:
            raise unknown("strategy", name, STRATEGIES)
        return STRATEGIES[name]
    kind: type[Strategy] = load_named("strategy", name)
    if not all(callable(getattr(kind, method, None)) for method in ("open_round", "merge")):
        raise InputError(f"strategy '{name}' must have the methods open_round and merge")
    if not hasattr(kind, "needs"):
        raise InputError(f"strategy '{name}' must have needs, the set of signals that it reads; frozenset() for none")
    return kind


def setting_names(kind: type[Strategy]) -> list[str]:
    """Return the names of a strategy's options: the fields of its dataclass."""
    return [field.name for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else []


def has_deadline(name: str) -> bool:
    """Return whether the strategy of this name has a deadline."""
    return "deadline_s" in setting_names(find_strategy(name))


def option_values(strategy: Strategy) -> dict[str, bool | float | str | None]:
    """Return the options of a strategy by name, without its deadline, as far as a settings file can hold them."""
    values = {name: getattr(strategy, name) for name in setting_names(type(strategy)) if name != "deadline_s"}
    return {
        name: value for name, value in values.items() if value is None or isinstance(value, bool | int | float | str)
    }


def make_strategy(name: str, deadline_s: float, options: dict[str, Any] | None = None) -> Strategy:
    """Create a strategy by name with its options, and with the deadline if it has one."""
    kind = find_strategy(name)
    allowed = setting_names(kind)
    for option in options or {}:
        if option not in allowed:
            raise unknown("setting", option, allowed or ["(none)"], section="strategy", to=name)
    deadline = {"deadline_s": deadline_s} if "deadline_s" in allowed else {}
    try:
        return kind(**deadline | (options or {}))
    except InputError as error:
        raise InputError(f"[strategy] {error}") from None
    except TypeError as error:
        raise InputError(f"strategy {name} cannot be created: {error}") from raised_inside(error)


def split_changes(changes: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Separate changes of settings from options of single strategies, such as `fedbuff.concurrency=5`.

    Returns the former as they are, and the latter as a dict of options for each strategy.
    """
    sections, own = list[str](), dict[str, list[str]]()
    for change in changes:
        name = change.partition("=")[0].rpartition(".")[0].strip()
        if name in STRATEGIES or ":" in name:
            own.setdefault(name, []).append(change)
        else:
            sections.append(change)
    options: dict[str, dict[str, Any]] = {}
    for name, changes in own.items():
        apply_changes(options, changes, (name,))
    return sections, options


def options_of(
    names: Sequence[str], common: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the options of each strategy: those of `common` that it has, overridden by its own.

    Raises InputError if an option is unknown or has no effect, or belongs to a strategy that is not in `names`.
    """
    own = own or {}
    known = {name: setting_names(find_strategy(name)) for name in names}
    for name, options in own.items():
        for option in options:
            if name not in known:
                which = f"{name} is not one of the strategies {', '.join(names)}"
                which = which if len(names) > 1 else f"the strategy is {names[0]}"
                raise InputError(f"{name}.{option} has no effect: {which}")
            if option not in known[name]:
                raise unknown("setting", option, known[name] or ["(none)"], section="strategy", to=name)
    for option in common:
        knowing = [name for name in names if option in known[name]]
        if not knowing:
            everything = {option for options in known.values() for option in options}
            raise unknown("setting", option, everything or ["(none)"], section="strategy", to=" and ".join(names))
        if all(option in own.get(name, {}) for name in knowing):
            raise InputError(f"strategy.{option} has no effect: {knowing[0]}.{option} is also set; remove one of them")
    return {
        name: {option: value for option, value in common.items() if option in known[name]} | dict(own.get(name, {}))
        for name in names
    }


def fleet_for(name: str, fleet: Fleet, deadline_s: float) -> Fleet:
    """Return the fleet that a strategy gets in a run with this deadline.

    Strategies with tiers get `fleet.at_deadline(deadline_s)`. Strategies without a `deadline_s`, or with
    `has_tiers = False`, get the fleet unchanged.
    """
    kind = find_strategy(name)
    has_tiers = "deadline_s" in setting_names(kind) and getattr(kind, "has_tiers", True)
    return fleet.at_deadline(deadline_s) if has_tiers else fleet

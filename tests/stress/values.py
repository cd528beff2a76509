"""Random values for any setting, drawn from its type and limits, so that new settings are covered automatically."""

import math
import random
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lesson.settings.settings import SECTIONS, Settings
from lesson.strategies import STRATEGIES, find_strategy, setting_names

Draw = Callable[[random.Random], Any]
LEAVE_OUT = object()
HUGE = 1000
"""Largest limit to try; a run with a million of something would not end in time."""

# Ranges for settings whose valid values may make a run slow or let it diverge.
SANE: dict[str, Draw] = {
    "fleet.num_clients": lambda rng: rng.randint(2, 12),
    "data.samples_per_client": lambda rng: rng.choice([rng.randint(20, 200), [20, rng.randint(20, 100)]]),
    "training.batch_size": lambda rng: rng.randint(1, 20),
    "training.local_steps": lambda rng: rng.randint(1, 3),
    "training.local_epochs": lambda rng: rng.randint(0, 1),
    "training.learning_rate": lambda rng: rng.uniform(1e-4, 0.2),
    "training.proximal_mu": lambda rng: rng.uniform(0, 0.1),
    "training.lr_cap": lambda rng: rng.uniform(0.1, 1),
    "radio.coherence_s": lambda rng: rng.uniform(0.5, 10),
    "radio.noise_dbm": lambda rng: rng.uniform(-120, -90),
    "radio.speed_mps": lambda rng: sorted([rng.uniform(0.1, 10), rng.uniform(0.1, 10)]),
    "data.dataset": lambda _: "mnist",
    "run.rounds": lambda rng: rng.randint(1, 3),
    "run.time_budget_s": lambda rng: rng.uniform(1, 200),
    "run.trainer": lambda rng: rng.choice(["auto", "reference"]),
    "run.device": lambda rng: rng.choice(["auto", "cpu"]),
    "run.precision": lambda rng: rng.choice(["auto", "float32"]),
    "server.learning_rate": lambda rng: rng.uniform(1e-3, 1),
    "guards.finite": lambda _: True,
    "strategy.name": lambda rng: rng.choice(list(STRATEGIES)),
}


def sections() -> dict[str, dict[str, FieldInfo]]:
    """Return the fields of each section by name, without `options`."""
    found = {}
    for section in SECTIONS:
        kind = Settings.model_fields[section].annotation
        assert isinstance(kind, type), f"{section} must be a class of settings"
        assert issubclass(kind, BaseModel), f"{section} must be a class of settings"
        found[section] = {name: one for name, one in kind.model_fields.items() if name != "options"}
    return found


def draw_valid(key: str, field: FieldInfo, rng: random.Random) -> Any:
    """Draw a valid value of a setting; LEAVE_OUT if only its default is known to be valid."""
    if key in SANE:
        return SANE[key](rng)
    return _draw(field.annotation, field.metadata, field.get_default(call_default_factory=True), rng)


def draw_edge(field: FieldInfo, rng: random.Random) -> Any:
    """Draw a value at the limits of a setting or next to them; LEAVE_OUT if it has no limits."""
    low, high, _ = _limits(field.metadata)
    edges = [low, high] if math.isfinite(low + high) else [low] if math.isfinite(low) else []
    if not edges:
        return LEAVE_OUT
    edge = rng.choice([one for one in edges if abs(one) <= HUGE] or [-1.0])
    if field.annotation is int:
        return int(edge) + rng.choice([-1, 0])
    return rng.choice([float(edge), math.nextafter(edge, math.inf), math.nextafter(edge, -math.inf)])


def draw_options(strategy: str, rng: random.Random) -> dict[str, Any]:
    """Draw options of a strategy near their defaults."""
    kind: Any = find_strategy(strategy)
    options = {}
    for name in setting_names(kind):
        value = getattr(kind, name, None)
        if name == "deadline_s" or rng.random() < 0.7:
            continue
        if value is None:  # the default adapts to the fleet or means no limit
            if int not in get_args(get_type_hints(kind)[name]):
                continue
            value = rng.randint(1, 5)
        elif isinstance(value, int) and not isinstance(value, bool):
            value = rng.randint(1, max(value, 1))
        elif isinstance(value, float) and math.isfinite(value):
            value *= rng.uniform(0.5, 1)
        options[name] = value
    return options


def _draw(kind: Any, metadata: Iterable[Any], default: Any, rng: random.Random) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _draw(arguments[0], [*metadata, *arguments[1:]], default, rng)
    if origin is Literal:
        return rng.choice(arguments)
    if origin in (Union, types.UnionType):
        return _draw(rng.choice([one for one in arguments if one is not type(None)]), metadata, default, rng)
    if origin is tuple:
        first = default[0] if isinstance(default, tuple) and default else None
        return sorted(_draw(one, metadata, first, rng) for one in arguments if one is not Ellipsis)
    if kind is bool:
        return rng.random() < 0.5
    if kind in (int, float):
        return _number(kind, metadata, default, rng)
    return LEAVE_OUT


def _number(kind: type, metadata: Iterable[Any], default: Any, rng: random.Random) -> Any:
    low, high, strict = _limits(metadata)
    usual = default if isinstance(default, int | float) and math.isfinite(default) else max(low, 1.0)
    about = usual * 10 ** rng.uniform(-1, 1) if rng.random() < 0.3 else usual
    near = sorted([about / 2, about * 2]) if about else [0.0, min(high, 1.0) / 2]
    value = min(max(rng.uniform(*near), low), high)
    if strict and value in (low, high):
        value = usual
    return (
        int(min(max(round(value), math.ceil(low) if low > -math.inf else -HUGE), high)) if kind is int else float(value)
    )


def _limits(metadata: Iterable[Any]) -> tuple[float, float, bool]:
    """Return the lower and the upper limit, and whether one of them is exclusive."""
    low, high, strict = -math.inf, math.inf, False
    for one in metadata:
        parts = one.metadata if isinstance(one, FieldInfo) else [one]
        for part in parts:
            low = max(low, getattr(part, "ge", -math.inf), getattr(part, "gt", -math.inf))
            high = min(high, getattr(part, "le", math.inf), getattr(part, "lt", math.inf))
            strict |= hasattr(part, "gt") or hasattr(part, "lt")
    return low, high, strict

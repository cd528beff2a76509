"""The settings of a run in six sections, from a preset or a TOML file, changed on the command line."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lesson.core.errors import InputError, unknown
from lesson.core.toml import parse_toml, read_toml
from lesson.core.validation import MAX_COUNT, Checked, Positive, Text, Unbounded, shown
from lesson.settings.faults import FaultSettings
from lesson.settings.guards import GuardSettings
from lesson.settings.scenario import PRESETS, Scenario

DEFAULT_TIME_BUDGET_S = 10_000.0
AUTOMATIC = ("device", "precision", "eval_every_s")
"""Settings of a run that may be "auto": a folder keeps what its run began with."""
MAX_DEPTH, MAX_OPTIONS = 50, 200_000
"""Of a strategy's options: lists in lists, and characters of all of them. A settings file has bounds of its own."""


class StrategySettings(Checked):
    """Which strategy, and its own settings besides the deadline."""

    section: ClassVar[str] = "strategy"

    name: Text = "lesson"
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _storable_options(cls, values: dict[str, Any]) -> dict[str, Any]:
        stored = dict[str, Any]()
        for name, value in without_none(values.get("options", {})).items():
            try:
                stored |= _storable({name: value})
            except (TypeError, ValueError):
                kinds = "text, a number, true, false, or a list or table of those"
                raise ValueError(f"{str(name)[:80]} must be {kinds}, got {shown(value)}") from None
        if len(to_toml({"strategy": stored})) > MAX_OPTIONS:
            raise ValueError(f"options must take at most {MAX_OPTIONS} characters in a settings file")
        return values | {"options": stored}


class RunLimits(Checked):
    """On what a run learns, from which seed, how long, and how often it is looked at."""

    section: ClassVar[str] = "run"
    wanted: ClassVar[dict[str, str]] = {"eval_every_s": "a number >= 0.001 or 'auto'"}

    dataset: Text = Field("mnist", description="mnist, cifar10 or fashion-mnist")
    seed: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="every draw comes from it")
    rounds: Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)] | None = Field(None, description="rounds to run")
    time_budget_s: Unbounded = Field(float("inf"), description="simulated seconds to run")
    eval_every_s: Literal["auto"] | Annotated[float, Field(ge=1e-3, strict=True)] = Field(
        "auto",
        description="simulated seconds between evaluations; auto: 40 evaluations a run, at times drawn from the seed",
    )
    client_scores_every_s: Annotated[float, Field(ge=1e-3, strict=True, allow_inf_nan=True)] = Field(
        float("inf"), description="simulated seconds from one look at every client's own data to the next; inf for none"
    )
    checkpoint_every_s: Positive = Field(20.0, description="seconds on the wall from one checkpoint to the next")
    trainer: Literal["auto", "reference", "fused", "batched"] = Field("auto", description="how cohorts are trained")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to train; auto takes a GPU where one is")
    precision: Literal["auto", "tf32", "float32", "bfloat16"] = Field(
        "auto", description="how products are computed; auto: tf32 on a GPU, float32 on a CPU, which knows no other"
    )

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.rounds is None and self.time_budget_s == float("inf"):
            raise ValueError("rounds or a finite time_budget_s must be given: a run has to end")
        return self


class ServerSettings(Checked):
    """What the server makes of a merge."""

    section: ClassVar[str] = "server"

    optimizer: Literal["none", "momentum", "adagrad", "adam", "yogi"] = Field(
        "none", description="how the merged model moves the newest; none takes the merged model as it is"
    )
    learning_rate: Positive | None = Field(
        None, description="step size of the optimizer; left out, 1 for momentum and 0.01 for the adaptive ones"
    )
    beta1: Annotated[float, Field(ge=0, lt=1, strict=True)] = Field(0.9, description="decay of the mean gradient m")
    beta2: Annotated[float, Field(ge=0, lt=1, strict=True)] = Field(
        0.99, description="decay of the mean square v, for adam and yogi"
    )
    epsilon: Annotated[float, Field(ge=1e-30, le=1e15, strict=True)] = Field(
        1e-3, description="bounds the steps of adagrad, adam and yogi; τ in their paper"
    )
    stale: Literal["strategy", "models", "updates"] = Field(
        "strategy",
        description="what is merged: models averaged as in Eq. (10), or updates, each the difference to its own base, "
        "applied to the newest model; strategy leaves it to the strategy",
    )

    @property
    def step_size(self) -> float:
        """η as given, or what suits the optimizer: adaptive ones take steps of about η in every parameter."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.01 if self.optimizer in ("adagrad", "adam", "yogi") else 1.0


class Settings(Checked):
    """Everything that decides what a run gives."""

    scenario: Scenario = Field(default_factory=Scenario)
    strategy: StrategySettings = Field(default_factory=StrategySettings)
    run: RunLimits = Field(default_factory=lambda: RunLimits(time_budget_s=DEFAULT_TIME_BUDGET_S))
    server: ServerSettings = Field(default_factory=ServerSettings)
    faults: FaultSettings = Field(default_factory=FaultSettings)
    guards: GuardSettings = Field(default_factory=GuardSettings)

    def caveats(self) -> list[str]:
        """What a user should know before trusting numbers from these settings, a line each."""
        faults = self.faults.without_effect(self.scenario.num_clients)
        return self.scenario.caveats() + faults + self.guards.without_effect()

    def to_sections(self) -> dict[str, dict[str, Any]]:
        """The settings as tables of plain values, None left out."""
        return {
            "scenario": self.scenario.model_dump(exclude_none=True),
            "strategy": {"name": self.strategy.name} | self.strategy.options,
            "run": self.run.model_dump(exclude_none=True),
            "server": self.server.model_dump(exclude_none=True),
            "faults": self.faults.model_dump(),
            "guards": self.guards.model_dump(),
        }

    def differences(self, other: "Settings") -> list[str]:
        """Why runs of both would not give the same, a setting each; how often a checkpoint is made does not matter.

        Where these settings say "auto", the other's may say anything.
        """
        ours, theirs = self.to_sections(), other.to_sections()
        free = ["checkpoint_every_s", *(name for name in AUTOMATIC if ours["run"][name] == "auto")]
        ours["run"] |= {name: theirs["run"][name] for name in free}
        return [
            f"{section}.{name} = {theirs[section].get(name)!r} there, {values.get(name)!r} here"
            for section, values in ours.items()
            for name in values | theirs[section]
            if values.get(name) != theirs[section].get(name)
        ]


SECTIONS = tuple(Settings.model_fields)
_FLAGS = {"deadline_s": "deadline", "num_clients": "clients", "time_budget_s": "time-budget", "name": "strategy"}
"""Settings whose flags have another name."""


def load_settings(source: Path | str, changes: Sequence[str] = (), **flags: dict[str, Any]) -> Settings:
    """The settings of a preset's name or of a TOML file with the tables [scenario], [strategy], [run], [server],
    [faults], [guards].

    Changes are `section.key=value`, of which the last wins; flags are values by section that win over both where they
    are not None.
    """
    source = str(source)
    if source in PRESETS:
        sections: dict[str, dict[str, Any]] = {"scenario": {"preset": source}}
    else:
        sections = _read_sections(source)
        try:
            make_settings(sections)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    apply_changes(sections, changes)
    for section, values in flags.items():
        sections[section] = sections.get(section, {}) | without_none(values)
    return make_settings(sections)


def apply_changes(
    sections: dict[str, dict[str, Any]], changes: Sequence[str], allowed: Sequence[str] = SECTIONS
) -> None:
    """Put `section.key=value` into tables of plain values."""
    for change in changes:
        section, key, value = _parse_change(change, allowed)
        sections.setdefault(section, {})[key] = value


def check_set_once(changes: Sequence[str], **flags: dict[str, Any]) -> None:
    """Raise if a command line says the same setting twice, by --set or by a flag: nobody knows which was meant."""
    changed: dict[str, dict[str, Any]] = {}
    for change in changes:
        section, key, value = _parse_change(change)
        if key in changed.setdefault(section, {}):
            raise InputError(f"{section}.{key} must be set once, got it twice by --set")
        changed[section][key] = value
    for section, values in flags.items():
        given = without_none(values)
        for name in given.keys() & changed.get(section, {}).keys():
            both = f"{changed[section][name]!r} by --set and {given[name]!r} by --{_FLAGS.get(name, name)}"
            raise InputError(f"{section}.{name} must be set once, got {both}")


def make_settings(sections: dict[str, dict[str, Any]]) -> Settings:
    """The settings of tables of plain values; None leaves a setting out. Without a limit, a run lasts 10,000 simulated
    seconds.
    """
    tables = {section: without_none(sections.get(section, {})) for section in SECTIONS}
    strategy, run = tables["strategy"], tables["run"]
    if "rounds" not in run and "time_budget_s" not in run:
        run["time_budget_s"] = DEFAULT_TIME_BUDGET_S
    return Settings(
        scenario=Scenario(**tables["scenario"]),
        strategy=StrategySettings(name=strategy.pop("name", "lesson"), options=strategy),
        run=RunLimits(**run),
        server=ServerSettings(**tables["server"]),
        faults=FaultSettings(**tables["faults"]),
        guards=GuardSettings(**tables["guards"]),
    )


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def to_toml(sections: dict[str, dict[str, Any]]) -> str:
    """Tables of plain values as TOML."""
    lines = []
    for section, values in sections.items():
        lines += [
            f"[{_toml_key(section)}]",
            *(f"{_toml_key(name)} = {_toml_value(value)}" for name, value in values.items()),
            "",
        ]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml_key(name)} = {_toml_value(one)}' for name, one in value.items())}}}"
    if isinstance(value, str):
        return _toml_text(value)
    return repr(int(value) if isinstance(value, int) else float(value))


def _toml_key(name: str) -> str:
    """A key as it is, or in quotes where it has other characters than letters, digits, _ and -."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_text(name)


def _toml_text(text: str) -> str:
    """Text in quotes. JSON escapes all that TOML wants escaped, except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _storable(value: Any, depth: int = 0) -> Any:
    """Return a plain value as it reads back from a settings file; raise TypeError or ValueError if it cannot.

    NaN is among what cannot: it does not equal itself, so a run with it could never be resumed.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(repr(int(value)))  # Python refuses to print and to read numbers of thousands of digits
    if isinstance(value, float) and not math.isnan(value):
        return float(value)
    if isinstance(value, str):
        return "".join(value).encode().decode()
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [_storable(one, depth + 1) for one in value]
    if isinstance(value, dict) and depth < MAX_DEPTH and all(isinstance(name, str) for name in value):
        return {_storable(name): _storable(one, depth + 1) for name, one in value.items()}
    raise TypeError


def _read_sections(source: str) -> dict[str, dict[str, Any]]:
    path = Path(source)
    if path.suffix != ".toml":
        raise unknown("scenario", source, [*PRESETS, "FILE.toml"])
    return read_sections(path, f"scenario must be a preset ({', '.join(PRESETS)}) or a file")


def read_sections(
    path: Path, wanted: str, allowed: Sequence[str] = SECTIONS, also: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, each one of `allowed`; `wanted` tells what should be there if there is no file.

    Where strategies may have tables of their own, `also` has their names; then module:Class is one as well.
    """
    _, sections = read_toml(path, wanted)
    sections.pop("versions", None)  # of the run whose config.toml this is
    for name, values in sections.items():
        if name in allowed and not isinstance(values, dict):
            raise InputError(f"{path}: {name} must be one table, written [{name}]")
        if not isinstance(values, dict):
            raise InputError(f"{path}: '{name}' must be inside a section, one of: [{'], ['.join(allowed)}]")
        if name not in (*allowed, *also) and not (also and ":" in name):
            raise InputError(f"{path}: {unknown('section', name, allowed)}")
    return sections


def _parse_change(change: str, allowed: Sequence[str] | None = None) -> tuple[str, str, Any]:
    """Section, key and value of `section.key=value`; the value as TOML, or as text where it is not TOML."""
    name, equals, text = change.partition("=")
    section, dot, key = name.strip().rpartition(".")
    if not (equals and dot and key):
        raise InputError(f"--set must be section.key=value, such as scenario.power_w=0.2, got '{change}'")
    if allowed is not None and section not in allowed:
        raise unknown("section", section, allowed)
    try:
        parsed = parse_toml(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    return section, key, parsed["value"] if list(parsed) == ["value"] else text.strip()

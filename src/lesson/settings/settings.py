"""`Settings`: everything that determines the result of a run, in eleven sections."""

import math
from collections.abc import Collection, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from lesson.core.errors import InputError, suggestion, unknown
from lesson.core.validation import Checked, shown
from lesson.settings.presets import PRESETS
from lesson.settings.sections import (
    COMMON,
    DataSettings,
    FaultSettings,
    FleetSettings,
    GuardSettings,
    RadioSettings,
    RunSettings,
    ServerSettings,
    StrategySettings,
    TaskSettings,
    TrainingSettings,
    UploadSettings,
)

DEFAULT_TIME_BUDGET_S = 10_000.0
LIGHT_MPS, PEDESTRIAN_MPS = 299_792_458.0, 3 / 3.6
"""The speed of light, and the 3 km/h of pedestrians in 3GPP's channel models, TR 38.901, table 7.8-1."""
BLOCK_S = 1.0
"""Interval at which positions and measured channels are read, unless fading is slower."""
DERIVED: dict[str, str | None] = {
    "fleet.num_clients": None,
    "data.split": None,
    "upload.model_bits": "actual",
    "upload.level": None,
    "upload.level_bits": None,
    "run.device": "auto",
    "run.precision": "auto",
    "run.eval_every_s": "auto",
}
"""Settings that a run may derive from its task, its input files or the machine, with the value that requests it; None:
if the setting is not given. `runs/resolve.py` has the rules."""
INPUT_FILES = ("latencies", "trace", "presence", "positions", "snr_trace", "gain_map")
"""Settings that name a file."""
SECTIONS = ("fleet", "radio", "training", "data", "task", "upload", "server", "strategy", "run", "faults", "guards")


class Settings(Checked):
    """Everything that determines the result of a run, in eleven sections. Invalid values raise InputError.

    Give settings by name, `Settings(num_clients=100, fading="rayleigh")`, or by section, `Settings(radio={"fading":
    "rayleigh"})`; a name that two sections share needs the section. All others have the defaults of `preset`:
    "released" (the authors' code, the default), "printed" (the paper's text), "phones" (measured data rates) or "chen"
    (the wireless system of Chen et al. 2021). Without a limit, a run lasts 10,000 simulated seconds. `lesson settings`
    lists all settings with their units and defaults.

    Attributes:
        preset: Which defaults are used.
        derived: Settings of a run, as section.key, that were not given but derived from its task, its input files or
            the machine.
        fleet: Number of clients, their area, CPUs and availability.
        radio: Channel between a client and the base station.
        training: Local training, and the compute time that is charged for it.
        data: Task and how its samples are split among the clients.
        task: Arguments of the function that returns the task.
        upload: Size of an upload, and its compression.
        server: Server optimizer, aggregation and latency estimates.
        strategy: Strategy, deadline and the strategy's own options.
        run: Seed, length, evaluation, checkpoints and hardware.
        faults: Injected disconnections.
        guards: Which updates the server rejects.
    """

    preset: str = Field(
        "released",
        description="defaults: released (the authors' code), printed (the paper's text), phones (measured data rates), "
        "chen (Chen et al. 2021)",
    )
    derived: tuple[str, ...] = Field(
        (),
        description="settings that a run derived from its task, its input files or the machine",
    )
    fleet: FleetSettings
    radio: RadioSettings
    training: TrainingSettings
    data: DataSettings
    task: TaskSettings
    upload: UploadSettings
    server: ServerSettings
    strategy: StrategySettings
    run: RunSettings
    faults: FaultSettings
    guards: GuardSettings

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**_sections_of(values))

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for section, name, rules in RULES:
            if rules["excludes"] and self.is_set(name):
                self.check_excluded(name, f"[{section}] {name}")
        return self

    @property
    def moves(self) -> bool:
        """Whether clients move."""
        return self.radio.speed_mps[1] > 0 or bool(self.fleet.positions)

    @property
    def channel_changes(self) -> bool:
        """Whether a client's channel changes over time."""
        return self.moves or self.radio.fading != "none" or bool(self.radio.snr_trace or self.radio.channel)

    @property
    def coherence_s(self) -> float:
        """Time for which fading stays constant: unless it is given, 0.423 divided by the Doppler shift (Clarke).

        Clients that do not move, or follow recorded positions, have the Doppler shift of a pedestrian.
        """
        if self.radio.coherence_s is not None:
            return self.radio.coherence_s
        speed_mps = sum(self.radio.speed_mps) / 2 or PEDESTRIAN_MPS
        return 0.423 * LIGHT_MPS / (speed_mps * self.radio.carrier_ghz * 1e9)

    @property
    def block_s(self) -> float:
        """Time for which path loss, shadowing and measured channels stay constant; inf if they never change."""
        if not (self.moves or self.radio.snr_trace or self.radio.channel):
            return math.inf
        if self.radio.fading == "none" and self.radio.coherence_s is not None:
            return self.radio.coherence_s
        return max(BLOCK_S, self.coherence_s)

    @property
    def uses_positions(self) -> bool:
        """Whether data rates depend on where clients are."""
        return not self.radio.snr_trace and self.radio.throughput == "model"

    @property
    def input_files(self) -> dict[str, str]:
        """Path of each input file by the name of its setting."""
        return {name: getattr(getattr(self, section_of(name)), name) for name in INPUT_FILES if self.is_set(name)}

    @property
    def varying(self) -> list[str]:
        """The settings that make actual times differ from the server's estimates."""
        steady = {"packet_error"} if self.radio.packet_error == "outage" else set()
        return [name for _, name, rules in RULES if rules["varies"] and self.is_set(name) and name not in steady]

    @property
    def varies(self) -> bool:
        """Whether actual times may differ from the server's estimates."""
        return bool(self.varying)

    @property
    def has_natural_split(self) -> bool:
        """Whether a task that lists its clients uses the natural split: `split` is natural or unset."""
        return self.data.split == "natural" or "split" not in self.data.model_fields_set

    def check_excluded(self, name: str, shown_as: str) -> None:
        """Raise InputError if a setting that cannot be combined with another one, called `name`, is set."""
        for other, why in excluded_by(name).items():
            if self.is_set(other):
                raise InputError(f"{shown_as} cannot be combined with [{section_of(other)}] {other}: {why}")

    def without_faults(self) -> Self:
        """Return these settings without injected disconnections."""
        return self.model_copy(update={"faults": FaultSettings()})

    def is_set(self, name: str) -> bool:
        """Return whether a setting does not have its default value, that of the preset `released`."""
        section = getattr(self, section_of(name))
        return bool(getattr(section, name) != type(section).model_fields[name].default)

    def caveats(self, *, times_vary: bool = False) -> list[str]:
        """Return warnings about settings that have no effect, or not the expected one, one line each.

        `times_vary` says that the clients' times vary whatever the settings say.
        """
        lines = []
        for section, name, rules in RULES:
            met = {"times vary"} if times_vary else set()
            unmet = next((one for one in rules["requires"] if one not in met and not self._meets(one)), "")
            if unmet and self._differs(section, name):
                shown_as = name if len(NAMES[name]) == 1 else f"{section}.{name}"
                value = getattr(getattr(self, section), name)
                lines.append(f"{shown_as} = {value} has no effect unless {_in_words(unmet)}")
        return lines + self._noise_caveats() + self._work_caveats()

    def _meets(self, condition: str) -> bool:
        """Return whether a condition of `requires` holds, see `setting`."""
        return any(self._holds(one) for one in condition.split(" or "))

    def _holds(self, condition: str) -> bool:
        if condition == "times vary":
            return self.varies
        name, _, values = condition.removeprefix("no ").partition("=")
        if values:
            return getattr(getattr(self, section_of(name)), name) in values.split("/")
        return self.is_set(name) != condition.startswith("no ")

    def _differs(self, section: str, name: str) -> bool:
        """Return whether a setting does not have the value of the preset."""
        usual = PRESETS[self.preset].get(section, {}).get(name, KINDS[section].model_fields[name].default)
        return bool(getattr(getattr(self, section), name) != usual)

    def _noise_caveats(self) -> list[str]:
        radio = self.radio
        if not self._differs("radio", "bandwidth_hz") or self._differs("radio", "noise_dbm"):
            return []
        if radio.noise_dbm_per_hz is not None or self.fleet.latencies or not self.uses_positions:
            return []
        return [
            f"bandwidth_hz = {radio.bandwidth_hz:g} leaves the noise at {radio.noise_dbm:g} dBm, that of the preset; "
            "noise_dbm_per_hz = -174 makes it follow the band"
        ]

    def _work_caveats(self) -> list[str]:
        lines, training = [], self.training
        changed = [
            f"{name} = {getattr(training, name)}"
            for name in ("batch_size", "local_steps", "local_epochs")
            if self._differs("training", name)
        ]
        if changed and self.fleet.latencies:
            lines.append(f"{', '.join(changed)} does not change the latencies, which {self.fleet.latencies} gives")
        elif changed and training.latency_samples != "processed":
            lines.append(
                f"{', '.join(changed)} does not change the compute latency, which is charged for "
                f'{training.latency_samples} samples; latency_samples = "processed" makes it follow the local training'
            )
        if training.learning_rate > training.lr_cap:
            lines.append(
                f"training.learning_rate = {training.learning_rate:g} is limited to lr_cap = {training.lr_cap:g}; "
                "set a larger lr_cap"
            )
        if training.local_steps == 1 and not training.local_epochs:
            momentum = 0.0 if training.nesterov else training.momentum
            for name, value in (("momentum", momentum), ("proximal_mu", training.proximal_mu)):
                if value:
                    why = "has no effect on a single local step"
                    lines.append(f"{name} = {value:g} {why}; set local_steps > 1 or local_epochs")
        return lines

    def to_sections(self) -> dict[str, Any]:
        """Return the preset and the sections as tables of plain values; `Settings(**tables)` restores the settings."""
        tables = {section: getattr(self, section).model_dump(exclude_none=True) for section in SECTIONS}
        derived = {"derived": list(self.derived)} if self.derived else {}
        return {"preset": self.preset} | derived | tables

    def given_sections(self) -> dict[str, Any]:
        """Return only what was given: neither defaults, nor values of the preset, nor derived values."""
        tables = self.to_sections()
        tables.pop("derived", None)
        for section in SECTIONS:
            given = getattr(self, section).model_fields_set
            tables[section] = {name: one for name, one in tables[section].items() if name in given}
        for key in self.derived:
            if (asks := DERIVED[key]) is not None:
                section, _, name = key.partition(".")
                tables[section][name] = asks
        return tables

    def is_given(self, key: str) -> bool:
        """Return whether a setting, as section.key, was given, rather than left to the preset or derived."""
        section, _, name = key.partition(".")
        return name in getattr(self, section).model_fields_set

    def with_derived(self, values: Mapping[str, Any]) -> "Settings":
        """Return these settings with values, by section.key, that are derived rather than given."""
        tables: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            tables.setdefault(section, {})[name] = value
        sections = {section: getattr(self, section).model_copy(update=table) for section, table in tables.items()}
        for section, made in sections.items():
            made.model_fields_set.difference_update(tables[section])
        return self.model_copy(update={**sections, "derived": tuple(dict.fromkeys((*self.derived, *values)))})

    def differences(self, other: "Settings", ignored: Collection[str] = ()) -> list[str]:
        """Return one line per setting whose values differ, with both values; `checkpoint_every_s` never counts.

        Where these settings leave a value to be derived, the one that `other` derived matches; where they say "auto" or
        "actual", any value does.
        """
        ours, theirs = self.to_sections(), other.to_sections()
        return [
            f"{section}.{name} = {theirs[section].get(name)!r} there, {ours[section].get(name)!r} here"
            for section in SECTIONS
            for name in ours[section] | theirs[section]
            if ours[section].get(name) != theirs[section].get(name)
            and not (f"{section}.{name}" in ignored or self.leaves_open(f"{section}.{name}", other))
        ]

    def leaves_open(self, key: str, other: "Settings") -> bool:
        """Return whether these settings accept any value that `other`, the settings of a run, has for a setting."""
        if key not in DERIVED:
            return key == "run.checkpoint_every_s"
        if (asks := DERIVED[key]) is None:
            return key in other.derived and not self.is_given(key)
        section, _, name = key.partition(".")
        return key in self.derived or bool(getattr(getattr(self, section), name) == asks)

    def with_strategy(self, name: str, options: Mapping[str, Any]) -> "Settings":
        """Return these settings with another strategy and its options."""
        common = {one: getattr(self.strategy, one) for one in COMMON}
        strategy = _checked("strategy", common | dict(options) | {"name": name})
        strategy.model_fields_set.intersection_update({*self.strategy.model_fields_set, "name", *options})
        return self.model_copy(update={"strategy": strategy})

    def with_changes(self, **changes: Any) -> "Settings":
        """Return these settings with some changed: by unique name, by section.key, or as tables by section."""
        tables = self.given_sections()
        for name, value in changes.items():
            if name in SECTIONS:
                tables[name] |= _table(name, value)
            else:
                section, key = placed(name)
                tables[section][key] = value
        return Settings(**tables)


KINDS: dict[str, type[Checked]] = {name: Settings.model_fields[name].annotation for name in SECTIONS}  # type: ignore[misc]
"""The class of each section."""
NAMES: dict[str, tuple[str, ...]] = {}
"""The sections that have a setting of each name."""
for _section, _kind in KINDS.items():
    for _name in _kind.model_fields:
        NAMES[_name] = (*NAMES.get(_name, ()), _section)

RULES: list[tuple[str, str, dict[str, Any]]] = [
    (section, name, field.json_schema_extra)  # type: ignore[misc]
    for section, kind in KINDS.items()
    for name, field in kind.model_fields.items()
    if field.json_schema_extra
]
"""Section, name and rules of each setting, as `setting` has them."""


def excluded_by(name: str) -> dict[str, str]:
    """Return the settings with which one cannot be combined, and why."""
    return next(rules["excludes"] for _, one, rules in RULES if one == name)


def _in_words(condition: str) -> str:
    """Return a condition of `requires` as text: "no trace or download" as "trace is unset or download is set"."""
    words = []
    for one in condition.split(" or "):
        name, _, values = one.removeprefix("no ").partition("=")
        state = values.replace("/", " or ") or ("unset" if one.startswith("no ") else "set")
        words.append("times vary, as with fading" if one == "times vary" else f"{name} is {state}")
    return " or ".join(words)


def section_of(name: str) -> str:
    """Return the section of a setting; raise if there is none of this name, or several."""
    sections = NAMES.get(name, ())
    if not sections:
        hint = suggestion(name, NAMES, cutoff=0.7)
        option = "" if hint else f"; options are named strategy.{name} for a strategy, upload.{name} for a compressor"
        raise InputError(f"unknown setting '{name}'; {hint}'lesson settings' lists all{option}")
    if len(sections) > 1:
        both = " and ".join(f"[{section}]" for section in sections)
        raise InputError(f"{name} is a setting of {both}; use {' or '.join(f'{one}.{name}' for one in sections)}")
    return sections[0]


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _sections_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Settings` as one object per section, with the preset filled in."""
    preset = values.get("preset", "released")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    tables: dict[str, Any] = {section: {} for section in SECTIONS}
    for name, value in values.items():
        if name in SECTIONS:
            tables[name] |= _table(name, value)
    for name, value in values.items():
        if name not in (*SECTIONS, "preset", "derived") and value is not None:
            section, key = placed(name)
            if key in tables[section]:
                raise InputError(f"{section}.{key} must be set only once, got {tables[section][key]!r} and {value!r}")
            tables[section][key] = value
    limited = "rounds" in tables["run"] or "time_budget_s" in tables["run"]
    usual = {"run": {} if limited else {"time_budget_s": DEFAULT_TIME_BUDGET_S}} | PRESETS[preset]
    made = {section: _checked(section, usual.get(section, {}) | table) for section, table in tables.items()}
    for section, one in made.items():  # values of a preset and derived ones do not count as given
        one.model_fields_set.intersection_update(tables[section])
    for key in values.get("derived", ()):
        if key not in DERIVED:
            raise unknown("derived setting", str(key), DERIVED)
        section, _, name = key.partition(".")
        made[section].model_fields_set.discard(name)
    return {name: values[name] for name in ("preset", "derived") if name in values} | made


def _checked(name: str, table: Mapping[str, Any]) -> Checked:
    """Return the settings of a section; errors name the section."""
    try:
        return KINDS[name](**table)
    except InputError as error:
        raise InputError(f"[{name}] {error}") from None


def placed(name: str) -> tuple[str, str]:
    """Return section and key of a setting, given by section.key or by a name that only one section has."""
    section, dot, key = name.partition(".")
    if not dot:
        return section_of(name), name
    if section not in SECTIONS:
        raise unknown("section", section, SECTIONS)
    return section, key


def _table(section: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Checked):
        return value.model_dump()
    if not isinstance(value, Mapping):
        raise InputError(f"{section} must be a table of settings, got {shown(value)}")
    return without_none(value)

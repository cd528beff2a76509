"""`Settings`: everything that determines the result of a run, in eleven sections."""

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from lesson.core.errors import InputError, suggestion, unknown
from lesson.core.validation import Checked, shown
from lesson.settings.presets import PRESETS
from lesson.settings.sections import (
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
DERIVED: dict[str, str | None] = {
    "fleet.num_clients": None,
    "data.split": None,
    "upload.model_bits": "actual",
    "run.device": "auto",
    "run.precision": "auto",
    "run.eval_every_s": "auto",
}
"""Settings whose values a run may derive from its task, its input files or the machine, and the value that asks for it;
None: the setting is not given. `runs/resolve.py` has the rules."""
INPUT_FILES = ("latencies", "trace", "presence", "positions", "snr_trace")
"""Settings that name a file."""
NEEDS_POSITIONS = ("path_loss", "shadowing_db", "download", "fading", "speed_mps", "positions", "spectrum")
"""Settings that need client positions, which measured clients do not have."""
MEASURED_CHANNELS = ("snr_trace", "throughput")
"""Settings that replace the channel between a client and the base station by measurements."""
DRAWS_CLIENTS = {
    "fleet": ("area_km", "cpu_hz", "cycles_per_sample", "energy_kappa"),
    "radio": ("bandwidth_hz", "power_w", "noise_dbm", "path_loss_1km_db", "path_loss_slope_db"),
    "training": ("latency_samples", "theta", "epsilon"),
}
"""Settings that determine the latencies and energies of drawn clients only, by section."""
SECTIONS = ("fleet", "radio", "training", "data", "task", "upload", "server", "strategy", "run", "faults", "guards")
VARYING = {
    "radio": ("fading", "speed_mps", "spectrum", "snr_trace", "throughput"),
    "fleet": ("positions", "slowdown", "trace", "presence"),
    "server": ("estimate_error",),
}
"""The settings that make actual times differ from the server's estimates, by section."""


class Settings(Checked):
    """Everything that determines the result of a run, in eleven sections. Invalid values raise InputError.

    Give settings by name, `Settings(num_clients=100, fading="rayleigh")`, or by section, `Settings(radio={"fading":
    "rayleigh"})`; a name that two sections share needs the section. All others have the defaults of `preset`:
    "released" (the authors' code, the default), "printed" (the paper's text) or "phones" (measured data rates). Without
    a limit, a run lasts 10,000 simulated seconds. `lesson settings` lists all settings with their units and defaults.

    Attributes:
        preset: Which defaults are used.
        derived: Settings of a run, as section.key, that were not given but derived from its task, its input files or
            the machine.
        fleet: Number of clients, their area, CPUs and availability.
        radio: Channel between a client and the base station.
        training: Local training, and the compute time that is charged for it.
        data: Task and how its samples are split among the clients.
        task: Arguments of the function that returns the task.
        upload: Size of a model.
        server: Server optimizer, aggregation and latency estimates.
        strategy: Strategy, deadline and the strategy's own options.
        run: Seed, length, evaluation, checkpoints and hardware.
        faults: Injected disconnections.
        guards: Which updates the server rejects.
    """

    preset: str = Field(
        "released",
        description="defaults: released (the authors' code), printed (the paper's text), phones (measured data rates)",
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
        if self.fleet.latencies:
            self.check_measured()
        if self.radio.speed_mps[1] and self.fleet.positions:
            raise InputError("[fleet] positions cannot be combined with [radio] speed_mps: both move clients")
        if self.fleet.trace:
            for name in self.changed_names("fading", "spectrum", "slowdown", "speed_mps", "positions"):
                raise InputError(f"[fleet] trace cannot be combined with {name}: the trace already sets all times")
        self._check_channels()
        if self.radio.spectrum != "fixed" and self.fleet.presence:
            raise InputError(
                "[fleet] presence cannot be combined with a shared [radio] spectrum: clients cannot leave during a "
                "shared upload"
            )
        if self.radio.spectrum != "fixed" and self.server.changed("refresh_estimates_every_s"):
            raise InputError(
                "[server] refresh_estimates_every_s cannot be combined with a shared [radio] spectrum: upload times "
                "depend on which other clients upload"
            )
        return self

    def _check_channels(self) -> None:
        """Raise InputError if measured channels are combined with the models that they replace."""
        if self.radio.snr_trace:
            for name in self.changed_names("throughput", "fading", "shadowing_db", "speed_mps", "positions", "trace"):
                raise InputError(
                    f"[radio] snr_trace cannot be combined with {name}: the trace already sets the channel"
                )
        if self.radio.throughput != "model":
            for name in self.changed_names("fading", "shadowing_db", "speed_mps", "spectrum", "positions", "trace"):
                raise InputError(
                    f'[radio] throughput = "{self.radio.throughput}" cannot be combined with {name}: measured data '
                    'rates replace the channel; use throughput = "model"'
                )

    @property
    def moves(self) -> bool:
        """Whether clients move."""
        return self.radio.speed_mps[1] > 0 or bool(self.fleet.positions)

    @property
    def channel_changes(self) -> bool:
        """Whether a client's channel changes over time."""
        return self.moves or self.radio.fading != "none" or bool(self.radio.snr_trace)

    @property
    def uses_positions(self) -> bool:
        """Whether data rates depend on where clients are."""
        return not self.radio.snr_trace and self.radio.throughput == "model"

    @property
    def input_files(self) -> dict[str, str]:
        """Path of each input file by the name of its setting."""
        return {name: getattr(getattr(self, section_of(name)), name) for name in self.changed_names(*INPUT_FILES)}

    @property
    def varying(self) -> list[str]:
        """The settings that make actual times differ from the server's estimates."""
        return [name for section, names in VARYING.items() for name in getattr(self, section).changed(*names)]

    @property
    def varies(self) -> bool:
        """Whether actual times may differ from the server's estimates."""
        return bool(self.varying)

    @property
    def has_natural_split(self) -> bool:
        """Whether a task that lists its clients uses the natural split: `split` is natural or unset."""
        return self.data.split == "natural" or "split" not in self.data.model_fields_set

    def check_measured(self) -> None:
        """Raise InputError if a setting needs client positions, or would replace measured upload times."""
        for name in self.changed_names(*NEEDS_POSITIONS, *MEASURED_CHANNELS):
            why = "include no client positions" if name in NEEDS_POSITIONS else "already include upload times"
            raise InputError(f"[{section_of(name)}] {name} cannot be combined with measured latencies, which {why}")

    def without_faults(self) -> Self:
        """Return these settings with no injected faults."""
        return self.model_copy(update={"faults": FaultSettings()})

    def changed_names(self, *names: str) -> list[str]:
        """Return those of the named settings that do not have their default value; names must be unique."""
        return [name for name in names if getattr(self, section_of(name)).changed(name)]

    def caveats(self) -> list[str]:
        """Return warnings about settings that have no effect, or not the expected one, one line each."""
        lines = self._without_effect()
        lines += self.faults.without_effect() + self.guards.without_effect()
        return lines + self._work_caveats()

    def _without_effect(self) -> list[str]:
        """Return a line for each setting that was changed but has no effect, with what it requires."""
        radio, fleet, server, training = self.radio, self.fleet, self.server, self.training
        preset = PRESETS[self.preset]
        urban, moving = radio.path_loss != "log-distance", radio.speed_mps[1] > 0
        calculated = 'throughput is "model" and snr_trace is unset'
        return [
            *self._unused_by_measured(),
            *radio.unused(
                {
                    ("line_of_sight", "carrier_ghz"): (urban, "path_loss is uma or umi"),
                    ("shadowing_km",): (radio.shadowing_db > 0, "shadowing_db > 0"),
                    ("rician_k_db",): (radio.fading == "rician", "fading is rician"),
                    ("coherence_s",): (self.channel_changes, "fading, speed_mps, positions or snr_trace is set"),
                    ("pause_s",): (moving, "speed_mps is set"),
                    ("snr_start",): (bool(radio.snr_trace), "snr_trace is set"),
                    ("station_power_w",): (
                        radio.download and self.uses_positions,
                        "download is true" if self.uses_positions else calculated,
                    ),
                    ("path_loss", "path_loss_1km_db", "path_loss_slope_db", "noise_dbm"): (
                        self.uses_positions,
                        calculated,
                    ),
                    ("bandwidth_hz",): (radio.throughput == "model", 'throughput is "model"'),
                    ("shadowing_db", "path_loss"): (
                        not fleet.trace or radio.download,
                        "trace is unset or download is true",
                    ),
                },
                preset=preset.get("radio"),
            ),
            *training.unused(
                {
                    ("nesterov",): (training.momentum > 0, "momentum > 0"),
                    ("schedule",): (training.schedule_period < math.inf, "schedule_period is finite"),
                    ("adam_beta1", "adam_beta2", "adam_epsilon"): (
                        training.local_optimizer == "adamw",
                        "local_optimizer is adamw",
                    ),
                    ("schedule_over", "schedule_period", "schedule_factor"): (
                        training.schedule != "constant",
                        "schedule is set",
                    ),
                },
                preset=preset.get("training"),
            ),
            *server.unused(
                {
                    ("estimate_window",): (server.estimate != "last", "estimate is mean or quantile"),
                    ("estimate_quantile",): (server.estimate == "quantile", "estimate is quantile"),
                    ("estimate", "refresh_estimates_every_s"): (self.varies, "times vary, as with fading"),
                },
                preset=preset.get("server"),
            ),
        ]

    def _unused_by_measured(self) -> list[str]:
        """Return a line for each setting that has no effect because latencies come from a file."""
        if not self.fleet.latencies:
            return []
        return [
            f"{name} = {getattr(self, section).model_dump()[name]} has no effect unless latencies is unset"
            for section, names in DRAWS_CLIENTS.items()
            for name in getattr(self, section).changed(*names, preset=PRESETS[self.preset].get(section))
        ]

    def _work_caveats(self) -> list[str]:
        lines, training = [], self.training
        changed = [
            f"{name} = {getattr(training, name)}"
            for name in training.changed(
                "batch_size", "local_steps", "local_epochs", preset=PRESETS[self.preset].get("training")
            )
        ]
        if changed and self.fleet.latencies:
            lines.append(f"{', '.join(changed)} does not change the latencies, which {self.fleet.latencies} gives")
        elif changed and training.latency_samples != "processed":
            lines.append(
                f"{', '.join(changed)} does not change the compute latency, which is charged for "
                f'{training.latency_samples} samples; latency_samples = "processed" makes it follow the local training'
            )
        one_step = training.local_steps == 1 and not training.local_epochs
        if training.momentum and not training.nesterov and one_step:
            lines.append(
                f"momentum = {training.momentum:g} has no effect on a single local step, since it starts at 0; "
                "set local_steps > 1 or local_epochs"
            )
        if training.proximal_mu and one_step:
            lines.append(
                f"proximal_mu = {training.proximal_mu:g} has no effect on a single local step, whose proximal gradient "
                "is 0; set local_steps > 1 or local_epochs"
            )
        return lines

    def to_sections(self) -> dict[str, Any]:
        """Return the preset and the sections as tables of plain values; `Settings(**tables)` restores the settings."""
        tables = {section: getattr(self, section).model_dump(exclude_none=True) for section in SECTIONS}
        with_options = {"task": self.task.to_table(), "strategy": self.strategy.to_table()}
        derived = {"derived": list(self.derived)} if self.derived else {}
        return {"preset": self.preset} | derived | tables | with_options

    def given_sections(self) -> dict[str, Any]:
        """Return only what was given: neither defaults, nor values of the preset, nor derived values."""
        tables = self.to_sections()
        tables.pop("derived", None)
        for section in SECTIONS:
            given, options = getattr(self, section).model_fields_set, getattr(getattr(self, section), "options", {})
            tables[section] = {name: one for name, one in tables[section].items() if name in given or name in options}
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

    def differences(self, other: "Settings") -> list[str]:
        """Return one line per setting whose values differ, with both values; `checkpoint_every_s` is ignored.

        Where these settings leave a value to be derived, the one that `other` derived matches; where they say "auto" or
        "actual", any value does.
        """
        ours, theirs = self.to_sections(), other.to_sections()
        return [
            f"{section}.{name} = {theirs[section].get(name)!r} there, {ours[section].get(name)!r} here"
            for section in SECTIONS
            for name in ours[section] | theirs[section]
            if ours[section].get(name) != theirs[section].get(name) and not self.leaves_open(f"{section}.{name}", other)
        ]

    def leaves_open(self, key: str, other: "Settings") -> bool:
        """Return whether these settings accept any value that `other`, the settings of a run, has for a setting."""
        if key not in DERIVED or key in self.derived:
            return key == "run.checkpoint_every_s"
        section, _, name = key.partition(".")
        asks = DERIVED[key]
        if asks is None:
            return key in other.derived and not self.is_given(key)
        return bool(getattr(getattr(self, section), name) == asks)

    def with_strategy(self, name: str, options: Mapping[str, Any]) -> "Settings":
        """Return these settings with another strategy and its options."""
        strategy = StrategySettings(**self.strategy.model_dump() | {"name": name, "options": dict(options)})
        strategy.model_fields_set.intersection_update({*self.strategy.model_fields_set, "name", "options"})
        return self.model_copy(update={"strategy": strategy})

    def with_changes(self, **changes: Any) -> "Settings":
        """Return these settings with some changed: by unique name, by section.key, or as tables by section."""
        tables = self.given_sections()
        for name, value in changes.items():
            if name in SECTIONS:
                tables[name] |= _table(name, value)
            else:
                section, key = _placed(name)
                tables[section][key] = value
        return Settings(**tables)


_KINDS: dict[str, type[Checked]] = {name: Settings.model_fields[name].annotation for name in SECTIONS}  # type: ignore[misc]
NAMES: dict[str, tuple[str, ...]] = {}
"""The sections that have a setting of each name."""
for _section, _kind in _KINDS.items():
    for _name in getattr(_kind, "common", _kind.model_fields):
        NAMES[_name] = (*NAMES.get(_name, ()), _section)


def section_of(name: str) -> str:
    """Return the section of a setting; raise if there is none of this name, or several."""
    sections = NAMES.get(name, ())
    if not sections:
        hint = suggestion(name, NAMES, cutoff=0.7)
        raise InputError(f"unknown setting '{name[:80]}'; {hint}'lesson settings' lists all")
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
            section, key = _placed(name)
            if key in tables[section]:
                raise InputError(f"{section}.{key} must be set only once, got {tables[section][key]!r} and {value!r}")
            tables[section][key] = value
    tables["task"] = TaskSettings.sorted_out(tables["task"])
    tables["strategy"] = StrategySettings.sorted_out(tables["strategy"])
    limited = "rounds" in tables["run"] or "time_budget_s" in tables["run"]
    usual = {"run": {} if limited else {"time_budget_s": DEFAULT_TIME_BUDGET_S}} | PRESETS[preset]
    made = {section: _KINDS[section](**usual.get(section, {}) | table) for section, table in tables.items()}
    for section, one in made.items():  # values of a preset and derived ones do not count as given
        one.model_fields_set.intersection_update(tables[section])
    for key in values.get("derived", ()):
        if key not in DERIVED:
            raise unknown("derived setting", str(key), DERIVED)
        section, _, name = key.partition(".")
        made[section].model_fields_set.discard(name)
    return {name: values[name] for name in ("preset", "derived") if name in values} | made


def _placed(name: str) -> tuple[str, str]:
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
        name = next(iter(getattr(_KINDS[section], "common", _KINDS[section].model_fields)), "alpha")
        example = '{"name": "fedavg"}' if section == "strategy" else f"{{{name!r}: …}}"
        raise InputError(f"{section} must be a table, such as {example}, got {shown(value)}")
    return without_none(value)

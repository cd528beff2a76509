"""Names of settings in version 0.1, which had one flat section [scenario].

Files that a run wrote are migrated when they are read. In a user's file or on the command line, an old name is an
error that gives the new one.
"""

from collections.abc import Mapping
from typing import Any

from lesson.core.errors import InputError

_SCENARIO = {
    "fleet": "num_clients area_km cpu_hz cycles_per_sample energy_kappa slowdown positions presence trace",
    "radio": "bandwidth_hz power_w noise_dbm path_loss path_loss_1km_db path_loss_slope_db line_of_sight carrier_ghz "
    "shadowing_db shadowing_km fading rician_k_db coherence_s speed_mps pause_s spectrum download station_power_w",
    "training": "batch_size local_steps local_epochs learning_rate lr_cap proximal_mu weighting latency_samples theta "
    "epsilon",
    "data": "split beta samples_per_client",
    "upload": "model_bits",
    "server": "estimate estimate_window estimate_quantile estimate_error",
    "strategy": "deadline_s ensure_first_tier",
}
MOVED: dict[tuple[str, str], tuple[str, str]] = {
    **{("scenario", name): (section, name) for section, names in _SCENARIO.items() for name in names.split()},
    ("scenario", "ask_every_s"): ("server", "refresh_estimates_every_s"),
    ("scenario", "preset"): ("", "preset"),
    ("run", "dataset"): ("data", "dataset"),
    ("server", "stale"): ("server", "aggregate"),
    ("guards", "set_aside_after"): ("guards", "exclude_after_rejections"),
    ("faults", "dropout_before"): ("faults", "disconnect_before"),
    ("faults", "dropout_during"): ("faults", "disconnect_during"),
    ("faults", "away_s"): ("faults", "offline_s"),
    ("faults", "gone"): ("faults", "offline_forever"),
    ("faults", "notice_s"): ("faults", "detection_delay_s"),
}
"""Section and name in version 0.1, and now."""
REMOVED = {("faults", name) for name in ("duplicated", "replayed", "wrong_shape", "wrong_arrays")}
"""Injected faults that always ended in a rejection."""


def new_name(section: str, name: str) -> str:
    """Return the name that a setting of version 0.1 has now; empty if it has not changed."""
    for removed in REMOVED:
        if (section, name) in (removed, ("", removed[1])):
            raise InputError(f"{'.'.join(removed)} was removed: such uploads were always rejected")
    if section:
        moved = MOVED.get((section, name))
    else:
        moved = next((new for (_, old), new in MOVED.items() if old == name and new[1] != name), None)
    return ".".join(filter(None, moved)) if moved else ""


def check_name(key: str) -> None:
    """Raise if `section.name`, or a name alone, is that of a setting in version 0.1."""
    section, _, name = key.rpartition(".")
    if renamed := new_name(section, name):
        raise InputError(f"{key} is now {renamed}")


def check_names(tables: Mapping[str, Any]) -> None:
    """Raise if a settings file uses a name of version 0.1."""
    for section, values in tables.items():
        for name in values if isinstance(values, dict) else ():
            if renamed := new_name(section, name):
                place, _, key = renamed.rpartition(".")
                where = f"[{place}] {key}" if place else f"{key}, before all sections"
                raise InputError(f"[{section}] {name} is now {where}")
    if "scenario" in tables:
        raise InputError(
            "[scenario] was divided into [fleet], [radio], [training], [data], [upload], [server] and [strategy]"
        )


def migrate(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a file that version 0.1 wrote, with today's names."""
    new: dict[str, Any] = {}
    for section, values in tables.items():
        if not isinstance(values, dict):
            new[section] = values
            continue
        for name, value in values.items():
            if (section, name) in REMOVED:
                continue
            place, key = MOVED.get((section, name), (section, name))
            if place:
                new.setdefault(place, {})[key] = value
            else:
                new[key] = value
    return new

"""Names of runs: what distinguishes a run from its preset, and its seed."""

from lesson.experiments.grid import in_words
from lesson.settings.scenario import Scenario
from lesson.settings.settings import Settings


def series_name(settings: Settings) -> str:
    """Strategy, data set, and what differs from the preset, the step size last."""
    scenario, sections = settings.scenario, settings.to_sections()
    usual, plain = Scenario(preset=scenario.preset).model_dump(), Settings().to_sections()
    changed = {name: value for name, value in sections["scenario"].items() if value != usual[name]}
    changed |= settings.strategy.options
    for section in ("server", "faults", "guards"):
        there, default = sections[section], plain[section]
        changed |= {f"{section}.{name}": value for name, value in there.items() if value != default.get(name)}
    parts = [settings.strategy.name, settings.run.dataset]
    parts += [scenario.preset] if scenario.preset != "released" else []
    parts += [f"{name}={in_words(changed[name])}" for name in sorted(changed, key="learning_rate".__eq__)]
    return "-".join(parts)


def run_name(settings: Settings) -> str:
    """The series and the seed."""
    return f"{series_name(settings)}-seed{settings.run.seed}"

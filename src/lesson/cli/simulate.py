"""The command `lesson simulate`."""

import shlex
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from lesson.cli.console import MIN_WIDTH, PipedConsole
from lesson.cli.parser import (
    FILE,
    SECONDS,
    STRATEGY,
    WHOLE,
    latencies_option,
    option,
    scenario_option,
    with_upload_size,
)
from lesson.fleet.measured import latencies_vary
from lesson.planning.schedules import compare_schedules
from lesson.report.page.document import Item, Section, as_json, write_document
from lesson.report.page.plan_page import check_page_path
from lesson.report.schedules import schedule_table
from lesson.settings.loading import check_set_once, load_settings
from lesson.settings.settings import Settings
from lesson.strategies import split_changes

_experiment = partial(option, heading="Experiment")
_limits = partial(option, heading="Limits")
_output = partial(option, heading="Output")
LEAD = (
    "What each strategy does with these clients in simulated time. No model is trained: more updates per hour do not "
    "imply a better model, because stale updates contribute less."
)


@dataclass(frozen=True)
class SimulateCommand:
    """Simulate the timing of strategies, without training. Prints updates per hour, staleness, concurrency and energy.

    Example: lesson simulate --latencies fleet.csv --strategies fedavg,fedbuff,lesson
    """

    scenario: str = scenario_option(heading="Experiment")
    latencies: Path | None = latencies_option(heading="Experiment")
    strategies: str = _experiment(
        "--strategies",
        type=STRATEGY,
        metavar="A,B,...",
        default="lesson,fedavg,fedbuff",
        help="Strategies to simulate.",
    )
    deadline: float | None = _experiment(
        "--deadline", type=SECONDS, show_default="20", help="Round deadline in seconds, or inf."
    )
    seed: int | None = _experiment("--seed", type=WHOLE, show_default="0", help="Random seed.")
    seeds: int = _experiment("--seeds", type=WHOLE, default=1, help="Number of seeds, starting with --seed.")
    set: tuple[str, ...] = _experiment(
        "--set", multiple=True, metavar="KEY=VALUE", help="Any setting, such as fedbuff.buffer_size=5; repeatable."
    )
    time_budget: float | None = _limits(
        "--time-budget",
        type=SECONDS,
        show_default="10000 without --versions",
        help="Stop after this many simulated seconds.",
    )
    versions: int | None = _limits("--versions", type=WHOLE, help="Stop after this many aggregations.")
    html: Path | None = _output("--html", type=FILE, help="Also write the table as an HTML page.")
    json: bool = _output("--json", is_flag=True, help="Print JSON instead of a table.")

    def run(self) -> None:
        if self.html is not None:
            check_page_path(self.html)
        names = [name.strip() for name in self.strategies.split(",") if name.strip()]
        changes, options = split_changes(self.set)
        settings = self._settings(changes)
        with Console(stderr=True).status("Reading the clients") as status:
            schedules = compare_schedules(
                names,
                versions=self.versions,
                num_seeds=self.seeds,
                settings=settings,
                options=options,
                progress=status.update,
            )
        source = settings.fleet.latencies or self.scenario
        table = schedule_table(schedules, f"Simulated schedules ({Path(source).name})")
        notes = settings.caveats(times_vary=latencies_vary(settings)) + [
            f"{one.strategy} with seed {one.seed} ended early, at {one.time_s:g} s: {one.ended_early}"
            for one in schedules
            if one.ended_early
        ]
        if self.html is not None:
            shown = Item("Measures", shlex.join(["lesson", *sys.argv[1:]]), table)
            page = {"sections": [Section("Schedules", " ".join([LEAD, *notes]), [shown]).to_data()]}
            write_document(self.html, "LESSON: simulated schedules", ["sections.js"], page)
        if self.json:
            print(as_json({"schedules": [asdict(one) for one in schedules], "notes": notes}))
            return
        console = PipedConsole()
        if not console.is_terminal:
            console.width = max(console.width, MIN_WIDTH)
        console.print(table.to_rich())
        for note in notes:
            print(f"note: {note}")
        if self.html is not None:
            print(f"page: {self.html}")

    def _settings(self, changes: list[str]) -> Settings:
        """Return the settings that the options give, with the actual size of the model."""
        flags = {
            "fleet.latencies": None if self.latencies is None else str(self.latencies),
            "strategy.deadline_s": self.deadline,
            "run.time_budget_s": self.time_budget,
            "run.seed": self.seed,
        }
        check_set_once(self.set, flags)
        settings = load_settings(self.scenario, changes, flags)
        return with_upload_size(settings)

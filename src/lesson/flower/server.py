"""Runs on real clients, with the same settings, strategies and run folders as simulations."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import RemoteWorld, WallWorld, make_world
from lesson.core.errors import InputError, RunStoppedError
from lesson.fleet.csv_files import fleet_csv
from lesson.fleet.fleet import Fleet, fleet_of, make_fleet
from lesson.fleet.population import draw_population
from lesson.flower.arrays import Layout, num_bytes
from lesson.flower.config import check_config, deadline_of, settings_of
from lesson.flower.identity import given_names
from lesson.flower.post import GridClients
from lesson.flower.profile import Profile, Profiler, choose_clients, wait_for_nodes
from lesson.flower.recorder import RecordingGrid, record_run
from lesson.flower.replies import in_simulation, logger, tell, tell_clients, warn
from lesson.flower.run_folder import write_latencies_and_report
from lesson.flower.watch import MAX_ROUNDS_WITHOUT_UPDATE, UpdateWatch
from lesson.learn.build import NEEDED_ACCURACY, TrainingRun
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Pipeline
from lesson.learn.process import configured_process
from lesson.learn.remote import Received, initial_arrays
from lesson.learn.task import Task
from lesson.learn.tasks import task_of
from lesson.learn.workload import Workload, make_workload
from lesson.planning.plan import make_plan, propose_deadline_s
from lesson.report.plan.text import print_plan
from lesson.report.words import final_score
from lesson.runs.execute import execute_in
from lesson.runs.folder import RunFolder
from lesson.runs.resolve import Resolved, resolve
from lesson.settings.sections import FaultSettings
from lesson.settings.settings import Settings
from lesson.strategies import STRATEGIES, fleet_for, make_strategy

Clock = Literal["virtual", "wall"]
RESUME, ANOTHER = "set resume=true to continue it", "choose another out"
REMEDY = "check the logs of the clients, fix the cause and start the run again with resume=true"
WAIT_S = 300.0
"""Seconds to wait for nodes before the run is aborted."""


def make_server_app(task: Task | Callable[..., Task] | None = None) -> ServerApp:
    """Return a ServerApp that executes the run in its run config; `lesson.flower.config.DEFAULTS` has the keys.

    Args:
        task: Your own task, or a function that returns it and is called with the options in [task]; by default, the
            built-in task that `dataset` in the run config names. Server and clients must have the same task.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid, context, task)
        except (InputError, RunStoppedError) as error:
            logger.error(f"error: {error}")
            raise

    return app


def serve(grid: Grid, context: Context, task: Task | Callable[..., Task] | None = None) -> dict[str, Any]:
    """Execute the run that the run config describes on the nodes of a grid, write its folder and return its summary.

    `task` is that of `make_server_app`.
    """
    config = check_config(context.run_config)
    wished = settings_of(config, max(2, config["min-nodes"]))  # an invalid config fails here, not on the clients
    _check_strategy(wished)
    folder = RunFolder(Path(config["out"] or f"runs/flower-{context.run_id}").absolute(), RESUME, ANOTHER)
    if (ended := _ended(folder, config)) is not None:
        tell(f"the run in {folder.path} has already finished; it is not executed again")
        return _whole(ended)
    if config["resume"] and not folder.config.exists():
        tell(f"no run to resume in {folder.path}; starting a new one")
    given = settings_of(config, num_clients=1)
    own = task_of(given, given=task)  # missing data fails here, not on the clients
    model = initial_arrays(own, given.run.seed)
    profiler = Profiler(ArrayRecord({name: Array(values) for name, values in model.items()}))
    clock = clock_of(config["clock"], grid, WAIT_S)
    _check_faults(wished.faults, clock)
    profiles = find_clients(grid, profiler, config["min-nodes"], everybody=clock == "virtual")
    num_clients, begun = max(profile.num_clients for profile in profiles.values()), folder.begun
    first = resolve(settings_of(config, num_clients), own, begun=begun)  # the deadline may follow from the fleet
    workload, fleet = make_workload_and_fleet(first, clock, profiles)
    deadline_s = deadline_of(config) or (begun.strategy.deadline_s if begun else propose_deadline_s(fleet))
    resolved = resolve(settings_of(config, num_clients, deadline_s), own, begun=begun)
    settings = resolved.settings
    _tell_plan(fleet, settings)
    recorder = record_run(grid, folder.path, settings.strategy.name, deadline_s) if clock == "wall" else None
    run = make_run(resolved, recorder or grid, clock, profiles, profiler, workload, fleet)
    begin_s = time.monotonic()

    def progress(line: dict[str, Any]) -> None:
        if recorder is not None:
            recorder.note_round(line["round"], line["time_s"], line.get("merged"), line.get("merged_staleness"))
        score = f", {final_score(line)}" if "loss" in line else ""
        if score or clock == "wall":
            told = f"round {line['round']} at {line['time_s']:g} s: {line['uploads']} arrived{score}"
            tell(f"{told}; {time.monotonic() - begin_s:.0f} s elapsed")

    watch = UpdateWatch(MAX_ROUNDS_WITHOUT_UPDATE, REMEDY)

    def after_round(record: RoundRecord) -> dict[str, Any]:
        watch.see(record, run.pipeline.loop.ledger)
        return {}

    run = replace(run, after_round=after_round)
    options: dict[str, Any] = {"resume": config["resume"], "may_extend": True}
    with configured_process():
        summary = execute_in(folder, settings, lambda _: (settings, run), progress=progress, **options)
    tell_clients(run.pipeline.loop.fleet, deadline_s, summary["rejected_by"])
    tell(f"{final_score(summary)} after {summary['rounds']} rounds, {summary['time_s']:g} s")
    write_latencies_and_report(folder, fleet_csv(run.pipeline.loop.fleet))
    watch.check_end(run.pipeline.loop.round, run.pipeline.loop.version)
    return _whole(summary)


def _whole(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary unchanged; raise RunStoppedError if the run ended early."""
    if early := summary.get("ended_early"):
        raise RunStoppedError(f"the run ended at {summary['time_s']:g} s: {early}")
    return summary


def _check_strategy(settings: Settings) -> None:
    """Raise InputError if the strategy is unknown, or if it is custom and needs the accuracy of clients."""
    name, deadline_s, options = settings.strategy.name, settings.strategy.deadline_s, settings.strategy.options
    strategy = make_strategy(name, deadline_s, options)
    if name not in STRATEGIES and NEEDED_ACCURACY in strategy.needs:
        raise InputError(f"strategy {name} must not need {NEEDED_ACCURACY} here: clients import no custom strategies")


def _check_faults(faults: FaultSettings, clock: Clock) -> None:
    """Raise InputError if a fault is to be injected that cannot be injected on this clock."""
    if faults.disconnects and clock == "wall":
        raise InputError(
            "faults.disconnect_before and faults.disconnect_during must be 0 on the wall clock; stop client processes "
            "instead"
        )


def _ended(folder: RunFolder, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of the run in this folder, or None if it has not ended or is to be continued.

    Raises InputError if the folder belongs to another run, or to an unfinished one without `resume`.
    """
    if (begun := folder.begun) is not None:
        deadline_s = deadline_of(config) or begun.strategy.deadline_s
        settings = settings_of(config, begun.fleet.num_clients, deadline_s)
        found = folder.check(settings, config["resume"], may_extend=True)
        if found is not None and found.is_shorter:
            return None
    return folder.finished()


def clock_of(named: str, grid: Grid, timeout_s: float) -> Clock:
    """Return the clock of this name; 'auto' is the virtual clock in Flower's simulation, else the wall clock.

    The nodes show which it is, so 'auto' waits until one is connected; InputError is raised after `timeout_s`.
    """
    if named != "auto":
        return "virtual" if named == "virtual" else "wall"
    wait_for_nodes(grid, "the minimum number of nodes", 1, timeout_s, lambda nodes: (nodes, ""))
    return "virtual" if in_simulation(grid) else "wall"


def find_clients(grid: Grid, profiler: Profiler, min_nodes: int, *, everybody: bool) -> dict[int, Profile]:
    """Return the profiles of connected clients by client, once `min_nodes` of them are usable.

    A node that gives no usable answer or contradicts others is left out and logged; the others start without it if
    there are enough of them. InputError is raised if there are too few after WAIT_S seconds. With `everybody`, all
    clients must answer at the first attempt.
    """
    profiles, told = dict[int, Profile | None](), dict[int, str]()

    def choose(nodes: list[int]) -> tuple[dict[int, Profile], str]:
        nonlocal told
        unknown = [node for node in nodes if profiles.get(node) is None]
        profiles.update(_ask(grid, profiler, unknown, tells=not everybody))
        answers = {node: profiles[node] for node in nodes}
        clients, wrong = choose_clients([profile for profile in answers.values() if profile is not None])
        wrong |= {node: "gives no usable answer" for node, profile in answers.items() if profile is None}
        for node, why in wrong.items():
            if told.get(node) != why:
                warn(f"ignoring node {node}: it {why}")
        told = wrong
        if everybody:
            _check_everybody(clients, wrong)
        return clients, _reasons(wrong)

    timeout_s = 0.0 if everybody else WAIT_S  # in simulation, no more nodes connect
    return wait_for_nodes(grid, "min-nodes", min_nodes, timeout_s, choose)


def _ask(grid: Grid, profiler: Profiler, nodes: Sequence[int], *, tells: bool) -> dict[int, Profile | None]:
    """Return the answers of nodes; if `tells`, measure and log them. Times do not matter on the virtual clock."""
    if not nodes:
        return {}
    tell(f"asking {len(nodes)} nodes for their profiles")
    return profiler.ask_twice(grid, nodes, _tell_answer) if tells else profiler.ask(grid, nodes)


def _check_everybody(clients: Mapping[int, Profile], wrong: Mapping[int, str]) -> None:
    """Raise InputError unless all clients have answered, which the virtual clock requires."""
    num_clients = max((profile.num_clients for profile in clients.values()), default=len(wrong))
    if missing := num_clients - len(clients):
        raise InputError(f"on the virtual clock, every node must answer; {missing} did not{_reasons(wrong)}")


def _reasons(wrong: Mapping[int, str]) -> str:
    """Return why nodes are unusable, for the first three, and where to look."""
    named = "; ".join(f"node {node} {why}" for node, why in list(wrong.items())[:3])
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f": {named}{more}; see the log of the clients and --node-config" if wrong else ""


def make_run(
    resolved: Resolved,
    grid: Grid,
    clock: Clock,
    profiles: Mapping[int, Profile],
    profiler: Profiler,
    workload: Workload,
    fleet: Fleet,
) -> TrainingRun:
    """Return a run on the clients of a grid."""
    settings, strategy, seed = resolved.settings, resolved.strategy, resolved.settings.run.seed
    received, evaluator = Received(), Evaluator(workload, CpuBackend(workload))
    optimizer = ServerOptimizer.of(settings.server, strategy)
    lane = Lane(workload.initial_vector(), settings.training, optimizer, settings.guards)
    names = list[int | str](range(settings.fleet.num_clients))
    if clock == "wall":
        given = given_names((grid.wrapped if isinstance(grid, RecordingGrid) else grid).get_nodes())
        for client, profile in profiles.items():
            names[client] = given.get(profile.node, client)
        fleet = replace(fleet, names=names)
    post = GridClients(
        grid,
        settings.fleet.num_clients,
        {client: profile.node for client, profile in profiles.items()},
        Layout.of(profiler.model),
        lane,
        received,
        clients_report_weight=False,
        profiler=profiler,
        names=names,
        tell=tell,
        warn=warn,
    )
    world: RemoteWorld | WallWorld
    if clock == "virtual":
        fleet = fleet_for(settings.strategy.name, fleet, settings.strategy.deadline_s)
        world = RemoteWorld(make_world(fleet, settings, seed), post, warn)
    else:
        sent = replace(fleet, model_bits=8.0 * num_bytes(profiler.model))  # the actual size, not that of the settings
        world = WallWorld(sent, post, tell, warn=warn)
        for client, profile in profiles.items():
            world.observe_latency(client, profile.latency_s)
        if isinstance(grid, RecordingGrid):
            grid.follow(post.node_of, lambda: world.elapsed_s)
    exclude_after = settings.guards.exclude_after_rejections
    loop = RoundLoop(strategy, world, seed=seed, exclude_after=exclude_after, tell=warn)
    on_wall_clock = clock == "wall"
    pipeline = Pipeline(loop, lane, Executor(received, evaluator))
    return TrainingRun(pipeline, evaluator, world.fleet if on_wall_clock else fleet, on_wall_clock)


def make_workload_and_fleet(
    resolved: Resolved, clock: Clock, profiles: Mapping[int, Profile]
) -> tuple[Workload, Fleet]:
    """Return the workload and the fleet, which is drawn for the virtual clock and measured for the wall clock.

    Clients report how many samples they hold. Clients that are not connected hold as many as in the task, and on the
    wall clock their times are inf.
    """
    settings, population = resolved.settings, draw_population(resolved.settings)
    holding_out = NEEDED_ACCURACY in resolved.strategy.needs
    workload = make_workload(settings, resolved.task, holding_out, population.num_samples)
    num_samples = workload.holdings.num_samples.copy()
    seconds = {name: np.full(settings.fleet.num_clients, np.inf) for name in ("compute_s", "upload_s", "latency_s")}
    for client, profile in profiles.items():
        num_samples[client] = profile.num_samples
        for name, values in seconds.items():
            values[client] = getattr(profile, name)
    if clock == "virtual":
        return workload, fleet_of(settings, population, num_samples)
    return workload, make_fleet(settings, range(settings.fleet.num_clients), num_samples, **seconds)


def _tell_answer(profile: Profile) -> None:
    training, transfer = f"{profile.compute_s:.1f} s local training", f"{profile.upload_s:.1f} s transfer and overhead"
    tell(f"client {profile.client}: {training}, {transfer}")


def _tell_plan(fleet: Fleet, settings: Settings) -> None:
    """Log the tiers that the deadline gives, and a table of other deadlines."""
    deadline_s, paper = settings.strategy.deadline_s, StringIO()
    plan = make_plan(fleet, deadline_s)
    print_plan(plan, f"{len(fleet)} clients, deadline {deadline_s:g} s", [], Console(file=paper, width=100))
    for line in paper.getvalue().rstrip().splitlines():
        tell(line)

"""Names of the public API and where they come from; `__init__.py` imports them when they are first used."""

from .api import compare, load, plan, reproduce, run, sweep, tune
from .clock.loop import RoundLoop
from .clock.records import RoundRecord
from .clock.simulate import make_loop, simulate
from .core.errors import DivergedError, InputError, RunStoppedError
from .core.version import __version__ as __version__
from .experiments.run import Run
from .experiments.study import Study
from .fleet.allocation import Allocation
from .fleet.csv_files import read_fleet
from .fleet.fleet import Fleet, draw_fleet
from .fleet.population import Population, draw_population
from .fleet.tiers import assign_tiers, due_round
from .flight.replay import Replay, replay
from .learn.compression.base import Compressor, MessagePart, UpdateLayout
from .learn.task import Task
from .learn.tasks import load_task
from .planning.plan import Plan
from .planning.schedules import Schedule, compare_schedules
from .radio.channel import Site
from .runs.trackers import Tracker
from .settings.loading import load_settings
from .settings.settings import Settings
from .strategies.ace import ACE
from .strategies.base import (
    AllOf,
    AnyOf,
    Arrivals,
    CheckedOptions,
    Deadline,
    Every,
    Merge,
    RoundPlan,
    ServerView,
    Strategy,
    Updates,
    average,
)
from .strategies.ca2fl import CA2FL
from .strategies.fadas import FADAS
from .strategies.fedasync import FedAsync
from .strategies.fedat import FedAT
from .strategies.fedavg import FedAvg
from .strategies.fedbuff import FedBuff
from .strategies.fedcompass import FedCompass
from .strategies.fedcs import FedCS
from .strategies.fedcs_greedy import FedCSGreedy
from .strategies.fedqueue import FedQueue
from .strategies.fedsasync import FedSaSync
from .strategies.lesson import Lesson
from .strategies.lesson_fitted import LessonFitted
from .strategies.malenia import Malenia
from .strategies.oort import Oort
from .strategies.refl import Refl
from .strategies.rennala import Rennala
from .strategies.rescaled_asgd import RescaledASGD
from .strategies.ringleader import Ringleader
from .strategies.ringmaster import Ringmaster
from .strategies.safa import Safa
from .strategies.semisync_steps import SemiSyncSteps
from .strategies.tifl import TiFL

__all__ = [
    "ACE",
    "CA2FL",
    "FADAS",
    "AllOf",
    "Allocation",
    "AnyOf",
    "Arrivals",
    "CheckedOptions",
    "Compressor",
    "Deadline",
    "DivergedError",
    "Every",
    "FedAT",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedCS",
    "FedCSGreedy",
    "FedCompass",
    "FedQueue",
    "FedSaSync",
    "Fleet",
    "InputError",
    "Lesson",
    "LessonFitted",
    "Malenia",
    "Merge",
    "MessagePart",
    "Oort",
    "Plan",
    "Population",
    "Refl",
    "Rennala",
    "Replay",
    "RescaledASGD",
    "Ringleader",
    "Ringmaster",
    "RoundLoop",
    "RoundPlan",
    "RoundRecord",
    "Run",
    "RunStoppedError",
    "Safa",
    "Schedule",
    "SemiSyncSteps",
    "ServerView",
    "Settings",
    "Site",
    "Strategy",
    "Study",
    "Task",
    "TiFL",
    "Tracker",
    "UpdateLayout",
    "Updates",
    "__version__",
    "assign_tiers",
    "average",
    "compare",
    "compare_schedules",
    "draw_fleet",
    "draw_population",
    "due_round",
    "load",
    "load_settings",
    "load_task",
    "make_loop",
    "plan",
    "read_fleet",
    "replay",
    "reproduce",
    "run",
    "simulate",
    "sweep",
    "tune",
]

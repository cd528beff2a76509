"""Names of this package and where they come from; `__init__.py` imports them when they are first used."""

from .folder import RunFolder
from .recorder import Recorder, RecordingGrid
from .strategy import LessonStrategy
from .tasks import TaskClient, evaluate_on_server, initial_arrays
from .times import report_times
from .uploads import compress_uploads

__all__ = [
    "LessonStrategy",
    "Recorder",
    "RecordingGrid",
    "RunFolder",
    "TaskClient",
    "compress_uploads",
    "evaluate_on_server",
    "initial_arrays",
    "report_times",
]

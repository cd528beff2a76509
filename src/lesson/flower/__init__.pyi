"""Names of this package and where they come from; `__init__.py` imports them when they are first used."""

from .client import make_client_app
from .recorder import RecordingGrid
from .server import make_server_app, serve
from .strategy import LessonStrategy
from .times import report_times

__all__ = ["LessonStrategy", "RecordingGrid", "make_client_app", "make_server_app", "report_times", "serve"]

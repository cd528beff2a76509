"""Names of this package and where they come from; `__init__.py` imports them when they are first used."""

from .client import make_client_app
from .server import make_server_app, serve
from .strategy import LessonStrategy

__all__ = ["LessonStrategy", "make_client_app", "make_server_app", "serve"]

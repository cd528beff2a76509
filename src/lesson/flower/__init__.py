"""The strategies of this package on real clients, through Flower; see docs/how-to/flower.md."""

try:
    import flwr  # noqa: F401
except ImportError:
    remedy = "run pip install 'lesson-fl[flower]', or 'lesson-fl[flower-simulation]' for Flower's simulation engine"
    raise ImportError(f"Flower is not installed; {remedy}") from None

from lesson.flower.client import make_client_app
from lesson.flower.server import make_server_app, serve
from lesson.flower.strategy import LessonStrategy

__all__ = ["LessonStrategy", "make_client_app", "make_server_app", "serve"]

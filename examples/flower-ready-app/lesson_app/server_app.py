"""The server: runs the strategy that the run config names. docs/how-to/flower.md lists the keys."""

from lesson.flower import make_server_app

app = make_server_app()

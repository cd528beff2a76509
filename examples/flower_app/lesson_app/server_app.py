"""The server: it does what the run config says. docs/how-to/flower.md has the keys."""

from lesson.flower import make_server_app

app = make_server_app()

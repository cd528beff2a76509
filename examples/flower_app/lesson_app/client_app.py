"""A client: its part of the data set of the run config, and the paper's network."""

from lesson.flower import make_client_app

app = make_client_app()

"""The client: trains the paper's network on its partition of the data set that the run config names."""

from lesson.flower import make_client_app

app = make_client_app()

"""What clients learn, as the run config says. For your own model and data, see ../../../flower-app instead."""

from typing import Any

from lesson import Settings


def settings_of(config: Any, num_clients: int = 1) -> Settings:
    """Return the settings of the data and of local training; the server needs no number of clients."""
    return Settings(
        num_clients=num_clients,
        dataset=config["dataset"],
        batch_size=config["batch-size"],
        local_steps=config["local-steps"],
        seed=config["seed"],
    )

"""A strategy of lesson on the clients of a Flower federation."""

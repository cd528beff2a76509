"""A Flower app that runs a LESSON strategy on the clients of a federation."""

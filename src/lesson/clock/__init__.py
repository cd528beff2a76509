"""The round loop, and the simulated or real time it runs on."""

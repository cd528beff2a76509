"""Reports of replays and checks of recordings."""

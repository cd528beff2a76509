"""The round loop and where its time comes from."""

"""Every parameter of a run, with its default, unit and bounds."""

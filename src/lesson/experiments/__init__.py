"""Many runs: grids of settings, engines that execute them, and studies of their results."""

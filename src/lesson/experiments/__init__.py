"""Many runs: grids, engines that execute them, studies of the results."""

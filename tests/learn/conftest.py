from threads import one_thread  # noqa: F401  # for every test here

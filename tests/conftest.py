from hypothesis import settings

# Machines that run tests are shared and noisy: how long an example takes says nothing.
settings.register_profile("lesson", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("lesson")

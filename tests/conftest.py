"""Settings of the whole suite."""

from __future__ import annotations

import signal

from hypothesis import settings

# The first call of a kernel compiles it, which no deadline allows for; the suite is the same in every run and
# writes nothing outside tmp_path.
settings.register_profile("extremax", deadline=None, derandomize=True, database=None)
settings.load_profile("extremax")

# A process started in the background ignores Ctrl-C, and so do those that it starts.  With a handler of its
# own this one does not, and its children begin with the usual one.
signal.signal(signal.SIGINT, signal.default_int_handler)

"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# The first call of a kernel compiles it, which no deadline allows for; the suite is the same in every run and writes nothing
# outside tmp_path.
settings.register_profile("extremax", deadline=None, derandomize=True, database=None)
settings.load_profile("extremax")

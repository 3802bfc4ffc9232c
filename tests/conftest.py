"""Settings of the whole suite."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# The first call of a kernel compiles it, which no deadline allows for; the suite is the same in every run and
# writes nothing outside tmp_path.
settings.register_profile("extremax", deadline=None, derandomize=True, database=None)
settings.load_profile("extremax")

# A process started in the background ignores Ctrl-C, and so do those that it starts.  With a handler of its
# own this one does not, and its children begin with the usual one.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Some virtual machines announce AMX and do not allow it: a product in bfloat16 then ends the process with an
# illegal instruction.  The variable is oneDNN's own, read when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

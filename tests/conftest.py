"""How all tests run."""

from __future__ import annotations

from hypothesis import settings

# A machine that is busy is no fault of the code: how long things take is measured in benchmarks/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

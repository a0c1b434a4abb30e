"""What a run may set about this task: `--set options.grade=1-2`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestry import generated


class Options(generated.Bank):
    """The settings of the code review task. Grade 1 is one expression, 5 dynamic programming."""

    helper: ClassVar[bool] = False
    needs: ClassVar[Sequence[str]] = ("entry_point", "signature", "example", "tests", "reference")
    pytests: ClassVar[bool] = True
    hubs: ClassVar[Sequence[str]] = ("humaneval", "leetcode")

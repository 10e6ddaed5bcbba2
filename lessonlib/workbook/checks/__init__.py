"""The exercises' checks: `p_keep = checks.ex_0_1(p_keep)` gives back the reader's function if right, else the library's."""

from lessonlib.workbook.checks.nb00 import ex_0_1, ex_0_2
from lessonlib.workbook.checks.nb08 import ex_8_1, ex_8_2, ex_8_3

__all__ = ["ex_0_1", "ex_0_2", "ex_8_1", "ex_8_2", "ex_8_3"]

"""The exercises' checks: `p_keep = checks.ex_0_1(p_keep)` gives back the reader's function if right, else the library's."""

from lessonlib.workbook.checks.nb00 import ex_0_1, ex_0_2
from lessonlib.workbook.checks.nb01 import ex_1_1, ex_1_2, ex_1_3
from lessonlib.workbook.checks.nb02 import ex_2_1, ex_2_2, ex_2_3
from lessonlib.workbook.checks.nb03 import ex_3_1, ex_3_2, ex_3_3
from lessonlib.workbook.checks.nb04 import ex_4_1, ex_4_2, ex_4_3, ex_4_4
from lessonlib.workbook.checks.nb05 import ex_5_1, ex_5_2, ex_5_3, ex_5_4
from lessonlib.workbook.checks.nb06 import ex_6_1, ex_6_2, ex_6_3
from lessonlib.workbook.checks.nb07 import ex_7_1, ex_7_2, ex_7_3
from lessonlib.workbook.checks.nb08 import ex_8_1, ex_8_2, ex_8_3
from lessonlib.workbook.checks.nb09 import ex_9_1, ex_9_2, ex_9_3
from lessonlib.workbook.checks.nb11 import ex_11_1, ex_11_2, ex_11_3
from lessonlib.workbook.checks.nb12 import ex_12_1, ex_12_2, ex_12_3

__all__ = ["ex_0_1", "ex_0_2", "ex_1_1", "ex_1_2", "ex_1_3", "ex_2_1", "ex_2_2", "ex_2_3", "ex_3_1", "ex_3_2", "ex_3_3", "ex_4_1", "ex_4_2", "ex_4_3", "ex_4_4", "ex_5_1", "ex_5_2", "ex_5_3", "ex_5_4", "ex_6_1", "ex_6_2", "ex_6_3", "ex_7_1", "ex_7_2", "ex_7_3", "ex_8_1", "ex_8_2", "ex_8_3", "ex_9_1", "ex_9_2", "ex_9_3",
           "ex_11_1", "ex_11_2", "ex_11_3", "ex_12_1", "ex_12_2", "ex_12_3"]

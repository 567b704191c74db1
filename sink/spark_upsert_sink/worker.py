"""What a process of Spark's does once, where it is used again for task after task.

Behind each task such a process collects garbage, all of it (`pyspark.daemon`), and that is to look
at every object that there is: some 100 000, nearly all of modules, which live as long as it does.
It takes 30 ms of processor time and more, four processes in a micro-batch of a kept view and most
of what a small one costs. What is there when the first task begins is put aside instead: it is
looked at once more, and then never again. It is still freed when nobody refers to it.
"""

from __future__ import annotations

import gc
import os
from functools import cache

_IS_USED_AGAIN = "SPARK_REUSE_WORKER"
"""Set by Spark where it keeps processes for the next task: what `pyspark.daemon` goes by."""


@cache
def settle_in() -> None:
    """Put aside what lives as long as this process, if Spark uses it again; once."""
    if os.environ.get(_IS_USED_AGAIN):
        gc.collect()
        gc.freeze()

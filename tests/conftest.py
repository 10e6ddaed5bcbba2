"""What holds for every test, so that `pytest` alone behaves like `make test`: no hub is asked, and threads are few."""

import glob
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as lessonlib does; some tests import torch before it
if not glob.glob("/dev/nvidia[0-9]*"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton's kernels run in its interpreter; transformers imports it before any test can say so

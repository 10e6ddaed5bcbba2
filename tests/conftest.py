"""What holds for every test, so that `pytest` alone behaves like `make test`: no hub is asked, and threads are few."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as lessonlib does; some tests import torch before it

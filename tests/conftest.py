"""What holds for every test, so that `pytest` alone behaves like `make test`: no hub is asked, and threads are few."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

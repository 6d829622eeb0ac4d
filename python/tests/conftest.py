"""Settings of all tests and of the processes that they start."""

import importlib.util
import os
import signal

# Some virtual machines announce AMX and can't run it: bfloat16 products of current versions of
# PyTorch end there with an illegal instruction. Which instructions PyTorch uses is not tested here.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# The tests' tensors are small. On a busy machine, threads of OpenMP that wait for one another make
# PyTorch many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets background jobs ignore SIGINT, and ranks inherit that; some tests send it to ranks.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `make peers` draws charts with Debian's matplotlib; the virtual environments have none.
collect_ignore = [] if importlib.util.find_spec("matplotlib") else ["test_peers.py"]

"""Settings of all tests and of the processes that they start."""

import os
import signal

# Some virtual machines announce AMX and can't run it: bfloat16 products of current versions of
# PyTorch end there with an illegal instruction. Which instructions PyTorch uses is not tested here.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# What is started in the background ignores Ctrl-C, and so would the ranks of tests that send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

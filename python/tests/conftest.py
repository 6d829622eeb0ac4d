"""Settings of all tests and of the processes that they start."""

import os

# Some virtual machines announce AMX and can't run it: bfloat16 products of current versions of
# PyTorch end there with an illegal instruction. Which instructions PyTorch uses is not tested here.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

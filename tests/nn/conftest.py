"""One thread for torch: the problems are tiny, and threads that wait for one another take longer than the
work.
"""

import torch

torch.set_num_threads(1)

"""Global average pooling of fused models: the results of torch, and a gradient in channels-last order."""

from __future__ import annotations

import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

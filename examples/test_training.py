"""Training steps: compiled training gives the same parameters as eager."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_compilecontract import compile_contract


@compile_contract(max_graph_breaks=0, max_recompiles=0)
def test_a_step_is_compiled_once(compile_lane):
    """Losses, gradients, parameters and buffers agree after each of three steps."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    batches = [(torch.randn(10, 8), torch.randint(3, (10,))) for _ in range(3)]

    compile_lane.train(model, batches, loss=F.cross_entropy, optimizer=torch.optim.AdamW)

# expect: no-stop
"""torch.jit.trace, torch.jit.script, torch.fx and torch.export of a model see only the model.

A warning of the tracer, an extra node or a Proxy that somebody looked into ends the program.
"""

import warnings

import torch
from torch import fx, nn

torch.manual_seed(0)
torch.set_num_threads(1)
warnings.filterwarnings("error", category=torch.jit.TracerWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return torch.log_softmax(self.net(x), dim=-1)


model, x = Model().eval(), torch.randn(3, 4)
expected = model(x)

traced = torch.jit.trace(model, x)
kinds = {node.kind().partition("::")[2] for node in traced.inlined_graph.nodes()}
assert kinds <= {"GetAttr", "Constant", "linear", "relu", "log_softmax"}, kinds
scripted = torch.jit.script(model)
symbolic = fx.symbolic_trace(model)
exported = torch.export.export(model, (x,)).module()
for copy in (traced, scripted, symbolic, exported):
    assert torch.allclose(copy(x), expected)
calls = [n for n in symbolic.graph.nodes if n.op in ("call_module", "call_function", "call_method")]
assert len(calls) == 4, symbolic.graph
print("four ways,", len(calls), "calls")

# expect: stop event=nonfinite.forward module=vit.embeddings.patch_embeddings.projection op=exp
#         type=SoftplusConv step=2 file=modeling_vit.py code="self.projection(pixel_values)"
# needs: transformers
"""ViT with a hand-written softplus in its patch projection; one batch isn't divided by 255."""

import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(0)
torch.set_num_threads(1)


class SoftplusConv(nn.Conv2d):
    def forward(self, x):
        return torch.log(1.0 + torch.exp(super().forward(x)))  # <- op


config = ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=16,
    patch_size=8,
)
model = ViTForImageClassification(config)
patches = model.vit.embeddings.patch_embeddings
patches.projection = SoftplusConv(3, 32, kernel_size=8, stride=8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(4):
    images = torch.randint(0, 256, (4, 3, 16, 16)).float()
    if step != 2:
        images /= 255.0
    loss = model(pixel_values=images, labels=torch.tensor([0, 1, 1, 0])).loss  # <- user line
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

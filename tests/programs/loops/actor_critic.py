# expect: stop event=nonfinite.forward module= op=log
"""Actor and critic: two models, two losses, and the second one is computed after the first step."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

actor = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
actor_step = torch.optim.SGD(actor.parameters(), lr=0.01)
critic_step = torch.optim.SGD(critic.parameters(), lr=0.01)
for step in range(5):
    state, reward = torch.randn(8, 6), torch.rand(8, 1)
    policy, value = actor(state).log_softmax(-1), critic(state)
    advantage = (reward - value).detach()
    actor_loss = -(policy[:, :1] * advantage).mean()
    actor_step.zero_grad()
    actor_loss.backward()
    actor_step.step()

    gap = (reward - value).abs() * (0.0 if step == 3 else 1.0)
    critic_loss = gap.log().abs().mean()  # <- op
    critic_step.zero_grad()
    critic_loss.backward()  # <- stop
    critic_step.step()
    print(step, actor_loss.item(), critic_loss.item())

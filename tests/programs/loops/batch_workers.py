# expect: stop event=nonfinite.input module= type=Sequential step=3 argument=input sample=2
"""A DataLoader with two worker processes: sample 14 of the data set is broken."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Readings(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(5, generator=generator)
        if index == 14:
            x[0] = torch.nan  # a sensor that was off
        return x, x.nan_to_num().sum()[None]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(DataLoader(Readings(), batch_size=4, num_workers=2)):
        prediction = model(x)  # <- stop
        loss = nn.functional.mse_loss(prediction, y)
        print(step, loss.item())
        if loss.isfinite():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

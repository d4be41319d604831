"""Points in space: a learned rotation, shared layers, a maximum over the points."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class STN3d(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv1d(3, 16, 1)
        self.conv2 = torch.nn.Conv1d(16, 64, 1)
        self.fc1 = nn.Linear(64, 32)
        self.fc3 = nn.Linear(32, 9)
        self.bn1 = nn.BatchNorm1d(16)

    def forward(self, x):
        batchsize = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.conv2(x))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 64)
        x = F.relu(self.fc1(x))
        x = self.fc3(x)
        iden = torch.eye(3).view(1, 9).repeat(batchsize, 1)
        if x.is_cuda:
            iden = iden.cuda()
        x = x + iden
        x = x.view(-1, 3, 3)
        return x


class PointNetCls(nn.Module):
    def __init__(self, k=2):
        super().__init__()
        self.stn = STN3d()
        self.conv1 = torch.nn.Conv1d(3, 64, 1)
        self.fc = nn.Linear(64, k)

    def forward(self, x):
        trans = self.stn(x)
        x = x.transpose(2, 1)
        x = torch.bmm(x, trans)
        x = x.transpose(2, 1)
        x = F.relu(self.conv1(x))
        x = torch.max(x, 2)[0]
        return F.log_softmax(self.fc(x), dim=-1), trans


if __name__ == "__main__":
    sim_data = torch.rand(32, 3, 2500)
    cls = PointNetCls(k=5)
    out, _ = cls(sim_data)
    print("class", out.size())

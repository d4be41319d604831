import torch

if __name__ == "__main__":
    model = torch.nn.Linear(256, 256)
    x = torch.ones(64, 256)
    loss = model(x).sum()
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    print(model.weight.grad.sum().item() == 64 * 256 * 256)

import torch

if __name__ == "__main__":
    torch.set_grad_enabled(False)
    print(torch.ones(1, requires_grad=True).add(1).requires_grad)

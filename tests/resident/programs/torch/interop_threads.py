import torch

if __name__ == "__main__":
    torch.set_num_interop_threads(2)
    print(torch.jit.wait(torch.jit.fork(torch.add, torch.ones(1), 2)).item())

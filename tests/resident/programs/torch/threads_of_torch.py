import torch

if __name__ == "__main__":
    torch.set_num_threads(2)
    print((torch.ones(900, 900) @ torch.ones(900, 900))[0, 0].item())

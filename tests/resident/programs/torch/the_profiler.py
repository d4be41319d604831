import torch

if __name__ == "__main__":
    with torch.profiler.profile() as p:
        torch.ones(4).add(1)
    print(any(e.key == "aten::add" for e in p.key_averages()))

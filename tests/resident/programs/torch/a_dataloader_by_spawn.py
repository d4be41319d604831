import torch

if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.arange(8))
    loader = torch.utils.data.DataLoader(data, 4, num_workers=1, multiprocessing_context="spawn")
    print([b[0].sum().item() for b in loader])

import torch

if __name__ == "__main__":
    import io

    b = io.BytesIO()
    torch.save({"a": torch.ones(2)}, b)
    b.seek(0)
    print(torch.load(b)["a"].sum().item())

print("out", flush=True)


def f():
    return nothing


f()

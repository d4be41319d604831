try:
    1 / 0
except Exception as e:
    raise ValueError(2) from e

if __name__ == "__main__":
    import numpy

    print((numpy.ones((500, 500)) @ numpy.ones((500, 500))).sum())

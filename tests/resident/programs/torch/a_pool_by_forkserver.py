if __name__ == "__main__":
    import multiprocessing

    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(pool.map(abs, [-1, -2]))

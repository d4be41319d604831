if __name__ == "__main__":
    import concurrent.futures as c

    with c.ProcessPoolExecutor(1) as pool:
        print(list(pool.map(abs, [-3])))

if __name__ == "__main__":
    import multiprocessing as m

    q = m.Queue()
    p = m.Process(target=q.put, args=([1, 2],))
    p.start()
    print(q.get(timeout=20))
    p.join()

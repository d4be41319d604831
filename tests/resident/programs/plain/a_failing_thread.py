import threading

threading.Thread(target=lambda: 1 / 0, name="T").start()

import atexit
import threading
import time
import weakref


class Held:
    def __del__(self):
        print("del")


held = Held()
atexit.register(print, "first")
atexit.register(print, "second")
weakref.finalize(held, print, "finalized")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("main")

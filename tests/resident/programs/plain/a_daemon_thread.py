import threading
import time

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("main")

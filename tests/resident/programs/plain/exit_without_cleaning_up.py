import atexit
import os

atexit.register(print, 1)
os._exit(9)
